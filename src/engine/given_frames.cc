#include "engine/given_frames.h"

#include <ATen/Functions.h>

#include <utility>
#include <vector>

namespace tessera::engine {

GivenFrames::GivenFrames(const at::Tensor& mask, const samplers::VideoSampler& sampler,
                         std::function<at::Tensor(int64_t step)> noise)
    : mask_(mask.to(at::kFloat)), sampler_(sampler), noise_(std::move(noise)) {}

at::Tensor GivenFrames::denoised() const {
  std::vector<at::Tensor> all;
  for (int64_t step = 0; step < sampler_.steps(); ++step) all.push_back(masks(step).denoised);
  return at::stack(all);
}

at::Tensor GivenFrames::entered(const at::Tensor& z, const at::Tensor& entering, const at::Tensor& noise,
                                int64_t step) const {
  return at::where(of_latents(entering), sampler_.add_noise(z, noise, step), z);
}

at::Tensor of_latents(const at::Tensor& frames) {
  return frames.unsqueeze(1).unsqueeze(-1).unsqueeze(-1);
}

}  // namespace tessera::engine
