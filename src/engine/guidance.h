// Guidance: which conditionings each picture takes, and how the predictions of its branches are combined.
//
// Shapes: N pictures, n of them on this rank, C latent channels, h' local rows (T' local frames of a video).
#pragma once

#include <ATen/core/Tensor.h>

#include <limits>
#include <vector>

#include "engine/local_latents.h"
#include "models/denoiser.h"
#include "parallel/ranks.h"

namespace tessera::engine {

// Determines which conditionings each picture uses, and how its branches are combined.
struct Guidance {
  struct Picture {
    int64_t prompt;  // indices into the prompts of the run
    int64_t negative;
    double scale;
    bool is_guided() const { return scale > 1; }
  };
  std::vector<Picture> pictures;  // [N]
  // Interpolates the deviation of the result towards that of the positive branch, 0 to 1 (Lin et al.,
  // arXiv:2305.08891, section 3.4).
  double rescale = 0;
  // If positive, the norm of a guided prediction over a whole picture is at most this many times that of its
  // positive branch.
  double normalization = 0;
  // There is no guidance in steps whose time, which goes from 0 (noise) to 1 (data), is above this.
  double truncation = std::numeric_limits<double>::infinity();

  // Adds `count` pictures. A picture without guidance needs no negative prompt.
  void add(int64_t prompt, int64_t negative, double scale, int64_t count = 1);
  // Returns whether any picture is guided; then both branches are computed for all pictures.
  bool is_guided() const;
  // Whether guidance has ended in a step.
  bool is_over(double timestep) const;
  // Returns the prompt of each sample of this rank's pictures, and that of its positive samples alone.
  std::vector<int64_t> samples(const parallel::Ranks& ranks) const;
  std::vector<int64_t> positive_samples(const parallel::Ranks& ranks) const;
};

// Combines the branches of this rank's pictures. The arguments must outlive it.
class BranchCombiner {
 public:
  BranchCombiner(const Guidance& guidance, const models::Denoiser& denoiser, const parallel::Ranks& ranks,
                 const LocalLatents& latents)
      : guidance_(guidance), denoiser_(denoiser), ranks_(ranks), latents_(latents) {}

  // Whether this rank computes two samples for each picture, negative ones first.
  bool has_both_branches() const { return guidance_.is_guided() && ranks_.cfg.size == 1; }
  // A tensor by picture -> by sample of this rank.
  at::Tensor by_sample(const at::Tensor& x) const;
  // Turns the prediction for this rank's samples into the guided one for its pictures, [n, C, (T',) h', w].
  // The ranks of the cfg axis must call this together; where deviations or norms of whole pictures are
  // needed, so must those of the sequence axes.
  at::Tensor operator()(const at::Tensor& prediction, double timestep) const;

 private:
  at::Tensor combine(const at::Tensor& negative, const at::Tensor& positive, double timestep) const;
  at::Tensor normalized(const at::Tensor& sum, const at::Tensor& positive) const;
  at::Tensor rescaled(const at::Tensor& sum, const at::Tensor& positive) const;
  // Returns the standard deviations [n, 1, 1, (1,) 1] of whole pictures or videos, of which each tensor
  // [n, C, (T',) h', w] is this rank's part.
  std::vector<at::Tensor> deviations_of(const std::vector<at::Tensor>& parts) const;

  const Guidance& guidance_;
  const models::Denoiser& denoiser_;
  const parallel::Ranks& ranks_;
  const LocalLatents& latents_;
};

}  // namespace tessera::engine
