// Rectified flow (arXiv:2209.03003) as Open-Sora 1.2 samples it: straight steps along the predicted velocity,
// at timesteps that larger and longer videos move towards the noise.
#pragma once

#include "samplers/video_sampler.h"

namespace tessera::samplers {

struct RectifiedFlowOptions {
  int64_t steps = 30;
  int64_t num_timesteps = 1000;
  bool use_discrete_timesteps = false;  // whether they are rounded before they are shifted
  bool use_timestep_transform = true;
  // The size of the video in pixels and frames, for the transform.
  double height = 512, width = 512;
  int64_t num_frames = 1;
};

class RectifiedFlow final : public VideoSampler {
 public:
  // Timesteps are computed in fp32, as in the public code: in double precision the first one may exceed
  // num_timesteps.
  explicit RectifiedFlow(const RectifiedFlowOptions& options);

  at::Tensor step(const at::Tensor& model_output, int64_t index, const at::Tensor& z, SamplerState& state,
                  const at::Tensor& noise) const override;
  at::Tensor predicted_sample(const at::Tensor& model_output, int64_t index,
                              const at::Tensor& z) const override;
  FrameMasks masks(const at::Tensor& mask, int64_t index) const override;
  at::Tensor add_noise(const at::Tensor& z, const at::Tensor& noise, int64_t index) const override;

 private:
  double time(int64_t index) const;  // from 1 (noise) to 0

  int64_t num_timesteps_;
};

}  // namespace tessera::samplers
