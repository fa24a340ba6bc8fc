#include "samplers/video_sampler.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/log.h"
#include "samplers/rectified_flow.h"

namespace tessera::samplers {
namespace {

constexpr int64_t kMaxTimesteps = 1'000'000;

// Those of the published class. A request has its own number of steps and guidance scale; the others are for
// training.
constexpr std::array<std::string_view, 9> kOptions = {
    "_class_name",   "num_sampling_steps",     "num_timesteps", "cfg_scale", "use_discrete_timesteps",
    "sample_method", "use_timestep_transform", "loc",           "scale"};

}  // namespace

std::unique_ptr<VideoSampler> make_video_sampler(const JsonConfig& config, const VideoSamplerRun& run) {
  const std::string name = config.string("_class_name");
  if (name != "RFLOW") config.refuse("_class_name", "of videos, only RFLOW can run here");
  for (const auto& [key, value] : config.values().items()) {
    if (std::find(kOptions.begin(), kOptions.end(), key) == kOptions.end())
      log_warning("[{}] option without effect: {}", config.where(), key);
  }
  const int64_t num_timesteps = config.count("num_timesteps", kMaxTimesteps, 1000);
  if (run.steps > num_timesteps)
    usage_error(field("num_inference_steps"), "must be at most {}, got {}", num_timesteps, run.steps);
  return std::make_unique<RectifiedFlow>(
      RectifiedFlowOptions{.steps = run.steps,
                           .num_timesteps = num_timesteps,
                           .use_discrete_timesteps = config.boolean("use_discrete_timesteps", false),
                           .use_timestep_transform = config.boolean("use_timestep_transform", false),
                           .height = run.height,
                           .width = run.width,
                           .num_frames = run.num_frames});
}

}  // namespace tessera::samplers
