// The denoising loop. There is one.
//
// Legend: N pictures, B = N samples, or 2 N with guidance (all negative branches first), C latent channels,
// h x w latent size.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "models/family.h"
#include "pipelines/noise.h"
#include "pipelines/observer.h"
#include "samplers/sampler.h"

namespace tessera::pipelines {

// Which conditioning each sample of the batch takes, and how the branches are joined.
struct Branches {
  std::vector<int64_t> prompt_of;  // [B], positions in the prompts of the denoiser's context
  bool guided = false;             // B = 2 N: negative branches, then positive ones
  double guidance = 1.0;
};

// The prompts of a run are [negative (only when guided), prompts...]; pictures of one prompt stand side by
// side.
Branches make_branches(int64_t prompts, int64_t pictures_per_prompt, bool guided, double guidance);

// Classifier-free guidance (Ho and Salimans 2022, arXiv 2207.12598): u + g (c - u), from [u; c] = [2 N, C, h,
// w] to [N, C, h, w].
at::Tensor guide(const at::Tensor& branches, double guidance);

// From z [N, C, h, w] (fp32, already scaled by init_noise_sigma) to the clean latents, same shape. Appends
// the seconds of each step to `step_seconds`. Throws Cancelled between steps.
at::Tensor denoise(const models::Denoiser& denoiser, const models::Denoiser::Context& context,
                   const samplers::Sampler& sampler, const Branches& branches, at::Tensor z, Noise& noise,
                   const Observer& observer, std::vector<double>& step_seconds);

}  // namespace tessera::pipelines
