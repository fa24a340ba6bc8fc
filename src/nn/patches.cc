#include "nn/patches.h"

#include <ATen/Functions.h>

namespace tessera::nn {

at::Tensor patchify(const at::Tensor& z, const PatchSize& patch) {
  const at::Tensor video = z.dim() == 5 ? z : z.unsqueeze(2);
  return video.unflatten(4, {video.size(4) / patch.columns, patch.columns})
      .unflatten(3, {video.size(3) / patch.rows, patch.rows})
      .unflatten(2, {video.size(2) / patch.frames, patch.frames})  // [B, C, T/p, p, h/p, p, w/p, p]
      .permute({0, 2, 4, 6, 1, 3, 5, 7})
      .flatten(4)
      .flatten(1, 3);
}

at::Tensor unpatchify(const at::Tensor& x, const parallel::Grid& grid, const PatchSize& patch) {
  const int64_t batch = x.size(0), channels = x.size(2) / patch.size();
  return x
      .view({batch, grid.frames, grid.rows, grid.columns, patch.frames, patch.rows, patch.columns, channels})
      .permute({0, 7, 1, 4, 2, 5, 3, 6})
      .reshape({batch, channels, grid.frames * patch.frames, grid.rows * patch.rows,
                grid.columns * patch.columns});
}

}  // namespace tessera::nn
