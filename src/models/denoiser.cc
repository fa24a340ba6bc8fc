#include "models/denoiser.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "core/error.h"
#include "models/family.h"

namespace tessera::models {

at::Tensor ForwardInputs::of_samples(const std::string& name) const {
  std::vector<at::Tensor> all;
  for (const int64_t prompt : prompt_of) {
    all.push_back(prompts[static_cast<size_t>(prompt)].at(name));
    TESSERA_CHECK(all.back().sizes() == all.front().sizes(), "'{}' differs in shape between prompts", name);
  }
  return at::stack(all);
}

Sequences ForwardInputs::sequences_of_samples(const std::string& name) const {
  std::vector<at::Tensor> all;
  std::vector<int64_t> lengths;
  for (const int64_t prompt : prompt_of) {
    all.push_back(prompts[static_cast<size_t>(prompt)].at(name));
    lengths.push_back(all.back().size(0));
  }
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  for (at::Tensor& one : all) one = at::constant_pad_nd(one, {0, 0, 0, longest - one.size(0)});
  return {at::stack(all), lengths};
}

parallel::Grid DenoiserShape::token_grid(const LatentShape& latents) const {
  const auto count = [](int64_t length, int64_t each) { return (length + each - 1) / each; };
  return {count(latents.latent_frames, patch.frames), count(latents.latent_height, patch.rows),
          count(latents.latent_width, patch.columns)};
}

std::vector<int64_t> DenoiserShape::latent_sizes(const LatentShape& latents, int64_t count) const {
  if (is_video)
    return {count, latent_channels, latents.latent_frames, latents.latent_height, latents.latent_width};
  return {count, latent_channels, latents.latent_height, latents.latent_width};
}

at::Tensor Denoiser::guide(const at::Tensor& negative, const at::Tensor& positive, double scale) const {
  // The order of operations is that of diffusers, so that the rounding is the same.
  return negative + scale * (positive - negative);
}

}  // namespace tessera::models
