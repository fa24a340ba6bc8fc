// Frames that a run keeps, or edits, while it generates the others (masked sampling of Open-Sora).
//
// Shapes: N videos, T frames of latents.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "samplers/rectified_flow.h"

namespace tessera::engine {

class GivenFrames {
 public:
  // mask [N, T] fp32: 1 generates a frame; 0 keeps the frame that the latents hold; a number between edits
  // it: it is kept until the steps reach that share of noise, and is denoised from there on. `noise(step)`,
  // shaped like the latents, is called once for each step in which frames begin to be denoised. The sampler
  // must outlive this.
  GivenFrames(const at::Tensor& mask, const samplers::RectifiedFlow& sampler,
              std::function<at::Tensor(int64_t step)> noise);

  // bool [N, T]: the frames that are denoised in a step; the others stay as they are.
  at::Tensor denoised(int64_t step) const;
  // bool [N, T]: those that are denoised from this step on, and get its noise before.
  at::Tensor entering(int64_t step) const;
  bool has_entering(int64_t step) const { return entering(step).any().item<bool>(); }

  // z [N, C, T, h, w], or any part of it, with the noise of the entering frames; `entering` [N, T] and
  // `noise` are of that part.
  at::Tensor entered(const at::Tensor& z, const at::Tensor& entering, const at::Tensor& noise,
                     int64_t step) const;
  at::Tensor noise(int64_t step) const { return noise_(step); }

 private:
  at::Tensor mask_;
  const samplers::RectifiedFlow& sampler_;
  std::function<at::Tensor(int64_t step)> noise_;
};

// A mask [N, T] as one for latents [N, C, T, h, w].
at::Tensor of_latents(const at::Tensor& frames);

}  // namespace tessera::engine
