// The denoising loop is the same for one rank and for many.
//
// Shapes: N pictures, n of them on this rank, C latent channels, h x w latent size (T frames of it for a
// video).
#pragma once

#include <ATen/core/Tensor.h>

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
  // Frames that the loop keeps or edits, if some are given.
  const GivenFrames* given = nullptr;
};

// Denoises z [N, C, (T,) h, w] (fp32, already scaled by init_noise_sigma), which is the same on all ranks.
// Rank 0 of each replica gets the clean latents [n, ...]; other ranks get an undefined tensor. Appends the
// seconds of each step to `step_seconds`. Throws Cancelled between steps. `observer.preview_every` must be
// the same on all ranks. `step_sums` [steps], fp64, receives for each step the sum of the latents that this
// rank has updated; the sum is not finite if one of them is not.
at::Tensor denoise(const Denoising& work, const at::Tensor& z, Noise& noise, const Observer& observer,
                   std::vector<double>& step_seconds, at::Tensor* step_sums = nullptr);

}  // namespace tessera::engine
