// Rotary position embedding (RoFormer, arXiv:2104.09864) of tokens that have a position on each of several
// axes. Each axis rotates its share of a head's features.
//
// Shapes: n tokens, A axes, H heads of D features.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <vector>

#include "ops/heads.h"
#include "parallel/grid.h"

namespace tessera::nn {

using ops::RotaryPairs;

// The number of features of a head that an axis rotates, which is even (0 leaves the axis out). Pair i of
// them turns by position / theta^(2 i / features).
struct RotaryAxis {
  int64_t features = 0;
  double theta = 10000;
};

// The dtypes to which frequencies, and then angles, are rounded before cosines and sines are computed.
// diffusers uses fp64 for both by default; some models use fp32 for the angles, or for both.
struct RotaryRounding {
  at::ScalarType frequencies = at::kDouble, angles = at::kDouble;
};

// The positions of the tokens of a grid on its axes, fp64 [N, 3]: frame, row and column, counted from
// `first`, which may be negative.
at::Tensor grid_positions(const parallel::Grid& grid, const std::array<double, 3>& first = {});

// The cosine and sine of each token's angles, fp32 [n, D / 2, 2]: the pairs of the first axis, then those of
// the next. positions [n, A] are any numbers, on the host. A row depends only on its token, so
// Tokens::local() and local_other() can select the rows of local tokens.
at::Tensor rotary_table(const at::Tensor& positions, const std::vector<RotaryAxis>& axes,
                        at::Device device = at::kCPU, const RotaryRounding& rounding = {});

// Rotates the pairs of x [B, n, H * D] by the angles of their tokens, given table [n, D / 2, 2]. Computed in
// fp32, rounded once.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& table, RotaryPairs pairs = RotaryPairs::kAdjacent);

}  // namespace tessera::nn
