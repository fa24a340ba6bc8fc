// The denoising loop is the same for one rank and for many.
//
// Shapes: N pictures, n of them on this rank, C latent channels, h x w latent size (T frames of it for a
// video).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "engine/denoiser_stage.h"
#include "engine/given_frames.h"
#include "engine/guidance.h"
#include "engine/noise.h"
#include "engine/observer.h"
#include "samplers/sampler.h"

namespace tessera::engine {

// The inputs of the loop. They are the same on all ranks, except for the stage, which is this rank's and has
// the samples guidance.samples(ranks).
struct Denoising {
  DenoiserStage& stage;
  const samplers::Sampler& sampler;
  const Guidance& guidance;
  const parallel::Ranks& ranks;
  // bool [steps, N, T]: models::Timestep::denoised_frames; undefined if all frames are denoised in every
  // step.
  at::Tensor denoised_frames = {};
  // Frames that the loop keeps or edits, if any are given.
  const GivenFrames* given = nullptr;
  // Has only the positive samples, for the steps after the end of guidance, where `stage` has both branches
  // of an exact layout without stages; null where `stage` serves those steps too.
  DenoiserStage* unguided = nullptr;
};

// Where the denoising of N pictures stands between two steps. It does not depend on how ranks divide the
// pictures: a state saved in one layout can continue in another.
struct DenoiseState {
  int64_t next_step = 0;
  at::Tensor latents;             // [N, C, (T,) h, w], fp32; at first the noise times init_noise_sigma
  samplers::SamplerState solver;  // of all pictures; its tensors are shaped like the latents
  Noise noise;                    // continues after what earlier steps have drawn
};

// This rank's part of the denoising loop: its pictures, its branch, its lines of the latents, its stage. It
// advances step by step; all ranks must make the same calls.
class DenoiseLoop {
 public:
  // `work` and `observer` must outlive it. `start` is the same on all ranks. Appends the seconds of each step
  // to `step_seconds`. `observer.preview_every` must be the same on all ranks.
  DenoiseLoop(const Denoising& work, DenoiseState start, const Observer& observer,
              std::vector<double>& step_seconds);
  ~DenoiseLoop();
  DenoiseLoop(const DenoiseLoop&) = delete;
  DenoiseLoop& operator=(const DenoiseLoop&) = delete;

  int64_t next_step() const;
  bool is_done() const;
  // Takes the next step. Throws Cancelled before it begins.
  void advance();
  // The latents after the last step: [n, ...] on rank 0 of each replica, undefined on others.
  at::Tensor latents() const;
  // The state after the steps so far. Its tensors are on the CPU of rank 0 of the world, and undefined on
  // others. The rest of the loop depends on nothing else if ranks do not use activations of earlier steps
  // (parallel::Layout::is_exact()).
  DenoiseState save();
  // Ends the loop before the last step, leaving no message in flight.
  void drop();
  // fp64 [steps]: for each step the sum of the latents that this rank has updated. The sum is not finite if
  // any of them is not.
  const at::Tensor& step_sums() const;
  const Noise& noise() const;

 private:
  class Stage;
  std::unique_ptr<Stage> stage_;
};

// Denoises z [N, C, (T,) h, w] (fp32, already scaled by init_noise_sigma), which is the same on all ranks.
// Returns DenoiseLoop::latents().
at::Tensor denoise(const Denoising& work, const at::Tensor& z, const Noise& noise, const Observer& observer,
                   std::vector<double>& step_seconds);

}  // namespace tessera::engine
