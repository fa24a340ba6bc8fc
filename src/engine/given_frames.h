// Frames that a run keeps, or edits, while it generates the others (masked sampling of Open-Sora).
//
// Shapes: N videos, T frames of latents.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "samplers/video_sampler.h"

namespace tessera::engine {

class GivenFrames {
 public:
  // mask [N, T] fp32, as in samplers::VideoSampler::masks(). `noise(step)`, shaped like the latents, is
  // called once for each step in which frames begin to be denoised. The sampler must outlive this.
  GivenFrames(const at::Tensor& mask, const samplers::VideoSampler& sampler,
              std::function<at::Tensor(int64_t step)> noise);

  samplers::FrameMasks masks(int64_t step) const { return sampler_.masks(mask_, step); }
  at::Tensor denoised() const;  // for all steps: Denoising::denoised_frames
  bool has_entering(int64_t step) const { return masks(step).entering.any().item<bool>(); }

  // Returns z [N, C, T, h, w], or any part of it, with noise added to the entering frames; `entering` [N, T]
  // and `noise` belong to the same part.
  at::Tensor entered(const at::Tensor& z, const at::Tensor& entering, const at::Tensor& noise,
                     int64_t step) const;
  at::Tensor noise(int64_t step) const { return noise_(step); }

 private:
  at::Tensor mask_;
  const samplers::VideoSampler& sampler_;
  std::function<at::Tensor(int64_t step)> noise_;
};

// Returns a mask [N, T] in the form for latents [N, C, T, h, w].
at::Tensor of_latents(const at::Tensor& frames);

}  // namespace tessera::engine
