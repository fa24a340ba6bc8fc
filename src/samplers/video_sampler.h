// What video samplers need in addition to their steps: keeping some frames, or editing them, while they
// generate the others.
//
// Shapes: N videos, T frames of latents.
#pragma once

#include "samplers/sampler.h"

namespace tessera::samplers {

// bool [N, T] each, for one step.
struct FrameMasks {
  at::Tensor entering;  // these get the step's noise before the step
  at::Tensor changing;  // these are changed by the step; the others stay unchanged
  at::Tensor denoised;  // these have the step's timestep in the model; the others have timestep 0
};

class VideoSampler : public Sampler {
 public:
  // mask [N, T] fp32: 1 generates a frame; 0 keeps the frame in the latents; a value in between edits it: the
  // frame stays fixed until the noise level falls to that value, and is denoised from then on.
  virtual FrameMasks masks(const at::Tensor& mask, int64_t index) const = 0;
  // Returns z with the noise of step `index`.
  virtual at::Tensor add_noise(const at::Tensor& z, const at::Tensor& noise, int64_t index) const = 0;
};

// The parameters of a run, besides the options of the file.
struct VideoSamplerRun {
  int64_t steps;
  double height, width;  // of the video, in pixels
  int64_t num_frames;
};

// Makes the sampler that a scheduler_config.json of Open-Sora describes (class IDDPM or RFLOW). Throws
// Error(kUsage) for an impossible run and Error(kInput) for another class or for options of it that cannot
// run; warns of unknown ones.
std::unique_ptr<VideoSampler> make_video_sampler(const JsonConfig& config, const VideoSamplerRun& run);

}  // namespace tessera::samplers
