// The denoising loop. There is one, for one rank and for many.
//
// Shapes: N pictures, n of them this rank's, C latent channels, h x w latent size (T frames of it for a
// video).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "engine/denoiser_stage.h"
#include "engine/noise.h"
#include "engine/observer.h"
#include "samplers/sampler.h"

namespace tessera::engine {

// Which conditionings each picture takes, and how its branches are joined.
struct Guidance {
  struct Picture {
    int64_t prompt;  // positions in the prompts of the run
    int64_t negative;
    double scale;
    bool is_guided() const { return scale > 1; }
  };
  std::vector<Picture> pictures;  // [N]
  // How far the deviation of the sum is brought back to that of the positive branch, 0 to 1 (Lin et al.,
  // arXiv:2305.08891, section 3.4).
  double rescale = 0;

  // Adds `count` pictures. One that is not guided needs no negative prompt.
  void add(int64_t prompt, int64_t negative, double scale, int64_t count = 1);
  // Whether any picture is: then both branches are computed of all.
  bool is_guided() const;
  // The prompts of the samples that this rank takes of its pictures.
  std::vector<int64_t> samples(const parallel::Ranks& ranks) const;
};

// What the loop works with. All ranks have the same but for the stage, which is this rank's, of
// guidance.samples(ranks).
struct Denoising {
  DenoiserStage& stage;
  const samplers::Sampler& sampler;
  const Guidance& guidance;
  const parallel::Ranks& ranks;
};

// From z [N, C, (T,) h, w] (fp32, already scaled by init_noise_sigma), the same on all ranks, to the clean
// latents [n, ...] on rank 0 of each replica; other ranks get an undefined tensor. Appends the seconds of
// each step to `step_seconds`. Throws Cancelled between steps. Of the observer, `preview_every` must be the
// same on all ranks. `step_sums` [steps], fp64, receives for each step the sum of the latents that this rank
// has updated; the sum is not finite if one of them is not.
at::Tensor denoise(const Denoising& work, const at::Tensor& z, Noise& noise, const Observer& observer,
                   std::vector<double>& step_seconds, at::Tensor* step_sums = nullptr);

}  // namespace tessera::engine
