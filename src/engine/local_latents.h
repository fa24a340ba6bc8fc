// A rank's part of the latents of a run: its pictures, and its lines of each patch (rows, frames or both).
//
// Shapes: N pictures, n of them on this rank, C latent channels, h x w latent size (T frames of it for a
// video), of which h' rows (T' frames) are on this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "engine/denoiser_stage.h"
#include "parallel/ranks.h"

namespace tessera::engine {

class LocalLatents {
 public:
  // Takes this rank's part of z [N, C, (T,) h, w], which is the same on all ranks.
  LocalLatents(const at::Tensor& z, const DenoiserStage& stage, const parallel::Ranks& ranks);

  const std::vector<int64_t>& sizes() const { return sizes_; }  // of the whole latents
  const at::TensorOptions& options() const { return options_; }
  const Range& pictures() const { return pictures_; }
  // The number of lines on each rank of the sequence axes; there must be one patch (checked).
  std::vector<int64_t> line_counts() const;

  // Returns the latents of a patch, [n, C, (T',) h', w], and those of several, joined.
  const at::Tensor& patch(int64_t i) const { return latents_[static_cast<size_t>(i)]; }
  void set_patch(int64_t i, at::Tensor z) { latents_[static_cast<size_t>(i)] = std::move(z); }
  at::Tensor joined(Range patches) const;
  // The same for other tensors that are shaped like the latents, one for each patch.
  at::Tensor join(at::TensorList by_patch) const;
  // The inverse: the parts of x that belong to each of the patches. Checks the number of lines.
  std::vector<at::Tensor> split(const at::Tensor& x, Range patches) const;

  // This rank's part of a tensor that is shaped like the whole latents, or like frames [N, T] of them.
  at::Tensor select(const at::Tensor& x, Range patches) const;
  at::Tensor select_frames(const at::Tensor& frames, Range patches) const;
  // An uninitialised tensor for the latents of patches.
  at::Tensor empty(Range patches) const;

  // Gathers the lines of all ranks of the sequence axes, which must call this together, on the first of them:
  // [n, C, (T,) h, w]; undefined on the others.
  at::Tensor gather() const { return gather(joined(cut().all_patches())); }
  // The same of another tensor that is shaped like all patches of the latents, joined.
  at::Tensor gather(at::Tensor own) const;

 private:
  const parallel::Cut& cut() const { return stage_.cut(); }
  const LatentAxis& of(parallel::GridAxis axis) const;
  // Returns the ranges of lines along an axis that a rank of the sequence axes holds in consecutive patches.
  std::vector<Range> lines(const LatentAxis& axis, Range patches, int64_t rank) const {
    return axis.of(cut().lines_of(axis.axis, patches, rank));
  }
  std::vector<int64_t> sizes_of(Range patches, int64_t rank) const;

  const DenoiserStage& stage_;
  const parallel::Ranks& ranks_;
  std::vector<int64_t> sizes_;
  at::TensorOptions options_;
  std::vector<LatentAxis> axes_;
  Range pictures_;
  std::vector<at::Tensor> latents_;  // by patch
};

}  // namespace tessera::engine
