#include "samplers/video_sampler.h"

#include <algorithm>
#include <array>
#include <span>

#include "core/error.h"
#include "core/log.h"
#include "samplers/iddpm.h"
#include "samplers/rectified_flow.h"

namespace tessera::samplers {
namespace {

constexpr int64_t kMaxTimesteps = 1'000'000;

// These are the options of the published classes. A request has its own number of steps and guidance scale;
// other options are for training.
constexpr std::array<std::string_view, 9> kFlowOptions = {
    "_class_name",   "num_sampling_steps",     "num_timesteps", "cfg_scale", "use_discrete_timesteps",
    "sample_method", "use_timestep_transform", "loc",           "scale"};
constexpr std::array<std::string_view, 5> kDdpmOptions = {"_class_name", "num_sampling_steps", "cfg_scale",
                                                          "diffusion_steps", "cfg_channel"};

void warn_of_unknown(const JsonConfig& config, std::span<const std::string_view> known) {
  for (const auto& [key, value] : config.values().items()) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      log_warning("[{}] option without effect: {}", config.where(), key);
  }
}

// Reads how many timesteps the training had, which is at least as many as the run's.
int64_t read_timesteps(const JsonConfig& config, const char* key, const VideoSamplerRun& run) {
  const int64_t count = config.count(key, kMaxTimesteps, 1000);
  if (run.steps > count)
    usage_error(field("num_inference_steps"), "must be at most {}, got {}", count, run.steps);
  return count;
}

std::unique_ptr<VideoSampler> make_iddpm(const JsonConfig& config, const VideoSamplerRun& run) {
  // STDiT2::guide() decides which channels are guided.
  constexpr int64_t kGuided = 3;
  warn_of_unknown(config, kDdpmOptions);
  if (config.integer("cfg_channel", kGuided) != kGuided) config.refuse("cfg_channel", "only 3 can run here");
  return std::make_unique<Iddpm>(run.steps, read_timesteps(config, "diffusion_steps", run));
}

std::unique_ptr<VideoSampler> make_rectified_flow(const JsonConfig& config, const VideoSamplerRun& run) {
  warn_of_unknown(config, kFlowOptions);
  const int64_t num_timesteps = read_timesteps(config, "num_timesteps", run);
  return std::make_unique<RectifiedFlow>(
      RectifiedFlowOptions{.steps = run.steps,
                           .num_timesteps = num_timesteps,
                           .use_discrete_timesteps = config.boolean("use_discrete_timesteps", false),
                           .use_timestep_transform = config.boolean("use_timestep_transform", false),
                           .height = run.height,
                           .width = run.width,
                           .num_frames = run.num_frames});
}

}  // namespace

std::unique_ptr<VideoSampler> make_video_sampler(const JsonConfig& config, const VideoSamplerRun& run) {
  const std::string name = config.string("_class_name");
  if (name == "IDDPM") return make_iddpm(config, run);
  if (name == "RFLOW") return make_rectified_flow(config, run);
  config.refuse("_class_name", "of videos, only IDDPM and RFLOW can run here");
}

}  // namespace tessera::samplers
