#include "samplers/rectified_flow.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace tessera::samplers {
namespace {

constexpr int64_t kClip = 17, kLatents = 5;  // frames of a clip, and its latent frames

// Returns the number of latent frames that a video counts as here: those of its whole clips.
int64_t counted_latent_frames(int64_t frames) {
  return frames == 1 ? 1 : frames / kClip * kLatents;
}

}  // namespace

RectifiedFlow::RectifiedFlow(const RectifiedFlowOptions& options) : num_timesteps_(options.num_timesteps) {
  TESSERA_CHECK(options.steps > 0 && num_timesteps_ > 0, "{} steps of {}", options.steps, num_timesteps_);
  // The public code would divide zero by zero.
  if (options.use_timestep_transform && counted_latent_frames(options.num_frames) == 0)
    usage_error(
        field("num_frames"),
        "must be 1, or {} or more, got {}: the timesteps depend on the number of whole clips of {} frames",
        kClip, options.num_frames, kClip);
  constexpr float kSide = 512;  // of the images that others are compared with
  const float all = static_cast<float>(num_timesteps_);
  const float space =
      std::sqrt(static_cast<float>(options.height) * static_cast<float>(options.width) / (kSide * kSide));
  const float ratio = space * std::sqrt(static_cast<float>(counted_latent_frames(options.num_frames)));
  for (int64_t i = 0; i < options.steps; ++i) {
    float t = (1.0F - static_cast<float>(i) / static_cast<float>(options.steps)) * all;
    if (options.use_discrete_timesteps) t = std::nearbyint(t);
    if (options.use_timestep_transform) {
      const float u = t / all;
      // For ratios below one half, rounding may lift the first one above `all`, where masks would not reach
      // it.
      t = std::min(ratio * u / (1.0F + (ratio - 1.0F) * u) * all, all);
    }
    timesteps_.push_back(t);
  }
}

double RectifiedFlow::time(int64_t index) const {
  return index < steps() ? timesteps_[static_cast<size_t>(index)] / static_cast<double>(num_timesteps_) : 0;
}

at::Tensor RectifiedFlow::step(const at::Tensor& model_output, int64_t index, const at::Tensor& z,
                               SamplerState& /*state*/, const at::Tensor& /*noise*/) const {
  return z + model_output * (time(index) - time(index + 1));
}

at::Tensor RectifiedFlow::predicted_sample(const at::Tensor& model_output, int64_t index,
                                           const at::Tensor& z) const {
  return z + model_output * time(index);
}

// The comparison is in fp32: at the first step a mask of 1 is compared with a timestep that equals it.
FrameMasks RectifiedFlow::masks(const at::Tensor& mask, int64_t index) const {
  const auto denoised = [&](int64_t at) {
    return mask * static_cast<float>(num_timesteps_) >=
           static_cast<float>(timesteps_[static_cast<size_t>(at)]);
  };
  const at::Tensor now = denoised(index);
  // Generated frames hold noise from the beginning.
  const at::Tensor before = index == 0 ? mask == 1 : denoised(index - 1);
  return {.entering = now.logical_and(before.logical_not()), .changing = now, .denoised = now};
}

at::Tensor RectifiedFlow::add_noise(const at::Tensor& z, const at::Tensor& noise, int64_t index) const {
  return (1 - time(index)) * z + time(index) * noise;
}

}  // namespace tessera::samplers
