#include "engine/given_frames.h"

#include <ATen/Functions.h>

#include <utility>

namespace tessera::engine {

GivenFrames::GivenFrames(const at::Tensor& mask, const samplers::RectifiedFlow& sampler,
                         std::function<at::Tensor(int64_t step)> noise)
    : mask_(mask.to(at::kFloat)), sampler_(sampler), noise_(std::move(noise)) {}

// In fp32: at the first step a mask of 1 is compared with a timestep that equals it.
at::Tensor GivenFrames::denoised(int64_t step) const {
  const auto timestep = static_cast<float>(sampler_.timesteps()[static_cast<size_t>(step)]);
  return mask_ * static_cast<float>(sampler_.num_timesteps()) >= timestep;
}

// Frames that are generated hold noise from the beginning.
at::Tensor GivenFrames::entering(int64_t step) const {
  return denoised(step).logical_and(step == 0 ? mask_ != 1 : denoised(step - 1).logical_not());
}

at::Tensor GivenFrames::entered(const at::Tensor& z, const at::Tensor& entering, const at::Tensor& noise,
                                int64_t step) const {
  return at::where(of_latents(entering), sampler_.add_noise(z, noise, step), z);
}

at::Tensor of_latents(const at::Tensor& frames) {
  return frames.unsqueeze(1).unsqueeze(-1).unsqueeze(-1);
}

}  // namespace tessera::engine
