// Rotary position embedding (RoFormer, arXiv:2104.09864) of tokens on a grid: each axis has a part of a
// head's features.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "parallel/grid.h"

namespace tessera::nn {

// Features of a head that turn with the frame, the row and the column of a token; even, their sum is the size
// of a head. 0 leaves an axis out.
struct RotaryAxes {
  int64_t frames = 0, rows = 0, columns = 0;
  double theta = 10000;
};

// cos and sin of the angles of every token of the grid: fp32 [N, D / 2, 2].
at::Tensor rotary_table(const parallel::Grid& grid, const RotaryAxes& axes, at::Device device = at::kCPU);

// Turns each pair of neighbours (2 i, 2 i + 1) of x [B, n, H * D] by the angle of its token; table [n, D / 2,
// 2]. In fp32, rounded once.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& table);

}  // namespace tessera::nn
