#include "engine/batch.h"

#include <algorithm>

#include "core/error.h"

namespace tessera::engine {
namespace {

void require_alike(const Settings& a, const Settings& b) {
  const auto require = [](bool same, const char* name) {
    if (!same) usage_error(field(name), "differs between the requests of one batch");
  };
  require(a.height == b.height && a.model_height == b.model_height, "height");
  require(a.width == b.width && a.model_width == b.model_width, "width");
  require(a.steps == b.steps, "num_inference_steps");
  require(a.scheduler == b.scheduler && a.request.scheduler == b.request.scheduler, "scheduler");
  require(a.request.eta == b.request.eta, "eta");
  require(a.request.vae_tiling == b.request.vae_tiling, "vae_tiling");
  require(a.request.vae_block_size == b.request.vae_block_size, "vae_block_size");
  require(a.max_sequence_length == b.max_sequence_length, "max_sequence_length");
  require(a.guidance_rescale == b.guidance_rescale, "guidance_rescale");
  require(a.sizes == b.sizes, "original_size, target_size or crops_coords_top_left");
  require(a.request.dtype == b.request.dtype, "dtype");
  require(a.request.device == b.request.device, "device");
  require(a.request.output_type == b.request.output_type, "output_type");
}

}  // namespace

Batch::Batch(std::span<const Settings> requests) {
  TESSERA_CHECK(!requests.empty(), "no requests");
  const auto place_of = [&](const models::Prompt& prompt) {
    const auto found = std::find(prompts.begin(), prompts.end(), prompt);
    const int64_t place = found - prompts.begin();
    if (found == prompts.end()) prompts.push_back(prompt);
    return place;
  };
  guidance.rescale = requests.front().guidance_rescale;
  for (const Settings& settings : requests) {
    require_alike(requests.front(), settings);
    const Request& request = settings.request;
    pictures.push_back({pictures.empty() ? 0 : count(), settings.pictures()});
    noise.push_back({*request.seed, settings.pictures()});
    const int64_t negative = settings.guided() ? place_of(settings.negative_prompt()) : -1;
    for (size_t i = 0; i < request.prompts.size(); ++i)
      guidance.add(place_of(settings.prompt(i)), negative, settings.guidance, request.num_images_per_prompt);
  }
}

}  // namespace tessera::engine
