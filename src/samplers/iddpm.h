// Improved DDPM (arXiv:2102.09672) as Open-Sora 1.1 samples it: ancestral steps at some of the timesteps of
// the training, with a variance that the model predicts between its lower and its upper bound.
#pragma once

#include "samplers/video_sampler.h"

namespace tessera::samplers {

class Iddpm final : public VideoSampler {
 public:
  explicit Iddpm(int64_t steps = 100, int64_t num_train_timesteps = 1000);

  bool needs_noise(int64_t /*index*/) const override { return true; }
  // `model_output` has twice the channels (dimension 1) of z: the noise, followed by the position of the
  // variance between its bounds, from -1 to 1.
  at::Tensor step(const at::Tensor& model_output, int64_t index, const at::Tensor& z, SamplerState& state,
                  const at::Tensor& noise) const override;
  at::Tensor predicted_sample(const at::Tensor& model_output, int64_t index,
                              const at::Tensor& z) const override;
  FrameMasks masks(const at::Tensor& mask, int64_t index) const override;
  at::Tensor add_noise(const at::Tensor& z, const at::Tensor& noise, int64_t index) const override;

 private:
  std::vector<double> alphas_cumprod_;  // by step, then 1: that of the sample
};

}  // namespace tessera::samplers
