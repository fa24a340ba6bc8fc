// Converts latents to tokens and back. A token is a block of p_t x p_h x p_w latent pixels (ViT,
// arXiv:2010.11929).
#pragma once

#include <ATen/core/Tensor.h>

#include "parallel/grid.h"

namespace tessera::nn {

struct PatchSize {
  int64_t frames = 1, rows = 1, columns = 1;
  int64_t size() const { return frames * rows * columns; }
};

// z [B, C, h, w] or [B, C, T, h, w] -> [B, n, C * p_t * p_h * p_w], with the tokens in grid order.
at::Tensor patchify(const at::Tensor& z, const PatchSize& patch);

// x [B, n, p_t * p_h * p_w * C], the n tokens of `grid` -> [B, C, T, h, w].
at::Tensor unpatchify(const at::Tensor& x, const parallel::Grid& grid, const PatchSize& patch);

}  // namespace tessera::nn
