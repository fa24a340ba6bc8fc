#include "engine/batch.h"

#include <algorithm>

#include "core/error.h"

namespace tessera::engine {
namespace {

[[noreturn]] void refuse_difference(const char* name) {
  usage_error(field(name), "differs between the requests of one batch");
}

}  // namespace

void require_alike(const Settings& a, const Settings& b) {
  const auto require = [](bool same, const char* name) {
    if (!same) refuse_difference(name);
  };
  require(a.height == b.height && a.model_height == b.model_height, "height");
  require(a.width == b.width && a.model_width == b.model_width, "width");
  require(a.frames == b.frames, "num_frames");
  require(a.request.fps == b.request.fps, "fps");
  require(a.loops == b.loops, "loop");
  require(a.request.align == b.request.align, "align");
  require(a.request.condition_frame_length == b.request.condition_frame_length, "condition_frame_length");
  require(a.request.condition_frame_edit == b.request.condition_frame_edit, "condition_frame_edit");
  require(a.steps == b.steps, "num_inference_steps");
  require(a.scheduler == b.scheduler && a.request.scheduler == b.request.scheduler, "scheduler");
  require(a.request.scheduler_options == b.request.scheduler_options, "scheduler_option");
  require(a.request.eta == b.request.eta, "eta");
  require(a.request.vae_tiling == b.request.vae_tiling, "vae_tiling");
  require(a.request.vae_block_size == b.request.vae_block_size, "vae_block_size");
  require(a.max_sequence_length == b.max_sequence_length, "max_sequence_length");
  require(a.latents.sizes == b.latents.sizes, "original_size, target_size or crops_coords_top_left");
  require(a.request.dtype == b.request.dtype, "dtype");
  require(a.request.device == b.request.device, "device");
  require(a.request.output_type == b.request.output_type, "output_type");
}

Batch::Batch(std::span<const Settings> requests) {
  TESSERA_CHECK(!requests.empty(), "no requests");
  const auto place_of = [&](const models::Prompt& prompt) {
    const auto found = std::find(prompts.begin(), prompts.end(), prompt);
    const int64_t place = found - prompts.begin();
    if (found == prompts.end()) prompts.push_back(prompt);
    return place;
  };
  guidance.resize(static_cast<size_t>(requests.front().loops));
  const Settings* guided = nullptr;
  for (const Settings& settings : requests) {
    require_alike(requests.front(), settings);
    if (settings.guided()) {
      if (!guided) guided = &settings;
      if (settings.guidance_rescale != guided->guidance_rescale) refuse_difference("guidance_rescale");
      for (Guidance& each : guidance) each.rescale = guided->guidance_rescale;
    }
    const Request& request = settings.request;
    guidance_weights.insert(guidance_weights.end(), static_cast<size_t>(settings.pictures()),
                            settings.guidance - 1);
    pictures.push_back({pictures.empty() ? 0 : count(), settings.pictures()});
    noise.push_back({*request.seed, settings.pictures()});
    for (int64_t loop = 0; loop < settings.loops; ++loop) {
      for (size_t i = 0; i < request.prompts.size(); ++i) {
        const int64_t negative = settings.guided() ? place_of(settings.negative_prompt(i, loop)) : -1;
        guidance[static_cast<size_t>(loop)].add(place_of(settings.prompt(i, loop)), negative,
                                                settings.guided() ? settings.guidance : 1,
                                                request.num_images_per_prompt);
      }
    }
  }
}

}  // namespace tessera::engine
