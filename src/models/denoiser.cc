#include "models/denoiser.h"

#include <ATen/Functions.h>

#include "core/error.h"

namespace tessera::models {

at::Tensor ForwardInputs::of_samples(const std::string& name) const {
  std::vector<at::Tensor> all;
  for (const int64_t prompt : prompt_of) {
    all.push_back(prompts[static_cast<size_t>(prompt)].at(name));
    TESSERA_CHECK(all.back().sizes() == all.front().sizes(), "'{}' differs in shape between prompts", name);
  }
  return at::stack(all);
}

at::Tensor Denoiser::guide(const at::Tensor& negative, const at::Tensor& positive, double scale) const {
  // The order of operations is that of diffusers, so that the rounding is the same.
  return negative + scale * (positive - negative);
}

}  // namespace tessera::models
