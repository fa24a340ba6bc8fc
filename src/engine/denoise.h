// The denoising loop. There is one, for one rank and for many.
//
// Legend: N pictures, n of them this rank's, B = n samples, or 2 n with both branches of guidance (negative
// ones first), C latent channels, h x w latent size, h' rows of this rank in the patches at hand.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "engine/noise.h"
#include "engine/observer.h"
#include "models/family.h"
#include "parallel/pipefusion.h"
#include "parallel/ranks.h"
#include "samplers/sampler.h"

namespace tessera::engine {

// Which conditioning each picture takes, and how the branches are joined. The prompts of a run are [negative
// (only when guided), prompts...].
struct Guidance {
  std::vector<int64_t> prompt_of;  // [N], positions in the prompts of the denoiser's context
  bool guided = false;
  double scale = 1.0;
};

// Pictures of one prompt stand side by side.
Guidance make_guidance(int64_t prompts, int64_t pictures_per_prompt, bool guided, double scale);

// Classifier-free guidance (Ho and Salimans 2022, arXiv 2207.12598): u + g (c - u).
at::Tensor guide(const at::Tensor& negative, const at::Tensor& positive, double scale);

// The tokens of a picture as `ranks` share them.
parallel::TokenCut make_cut(const parallel::Ranks& ranks, int64_t rows, int64_t columns);

// What the loop works with. All ranks have the same; `denoiser` is this rank's stage and its `context` is of
// the cut that make_cut() gave.
struct Denoising {
  const models::Denoiser& denoiser;
  models::Denoiser::Context& context;
  const samplers::Sampler& sampler;
  const Guidance& guidance;
  const parallel::TokenCut& cut;
  const parallel::Ranks& ranks;
};

// From z [N, C, h, w] (fp32, already scaled by init_noise_sigma), the same on all ranks, to the clean latents
// on rank 0 of the world; other ranks get an undefined tensor. Appends the seconds of each step to
// `step_seconds`. Throws Cancelled between steps.
at::Tensor denoise(const Denoising& work, const at::Tensor& z, Noise& noise, const Observer& observer,
                   std::vector<double>& step_seconds);

}  // namespace tessera::engine
