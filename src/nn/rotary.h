// Rotary position embedding (RoFormer, arXiv:2104.09864) of tokens on a grid. Each axis rotates its share of
// a head's features.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "parallel/grid.h"

namespace tessera::nn {

// The number of features of a head that the frame, the row and the column of a token rotate. Each is even,
// and their sum is the size of a head; 0 leaves an axis out.
struct RotaryAxes {
  int64_t frames = 0, rows = 0, columns = 0;
  double theta = 10000;
};

// The cosine and sine of each token's angles: fp32 [N, D / 2, 2].
at::Tensor rotary_table(const parallel::Grid& grid, const RotaryAxes& axes, at::Device device = at::kCPU);

// Rotates each adjacent pair (2 i, 2 i + 1) of x [B, n, H * D] by the angle of its token, given table [n, D /
// 2, 2]. Computed in fp32, rounded once.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& table);

}  // namespace tessera::nn
