// What is done with each head of queries and keys before attention: an RMS norm (arXiv:1910.07467), and
// rotary position embedding (RoFormer, arXiv:2104.09864).
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

namespace tessera::ops {

// The features of a head that rotate together, as pair i: 2 i and 2 i + 1, or i and D / 2 + i.
enum class RotaryPairs { kAdjacent, kHalves };

struct HeadPreparation {
  at::Tensor weight = {};  // of the norm, fp32 [D]; undefined: no norm
  double epsilon = 0;
  at::Tensor angles = {};      // cosines and sines by token, fp32 [n, D / 2, 2]; undefined: no rotation
  bool rotates_first = false;  // rotates before the norm instead of after it
  RotaryPairs pairs = RotaryPairs::kAdjacent;
};

// Norms each head of x [B, n, H * D], and rotates its pairs by the angles of its token. One of the two gives
// D. Computed in fp32, rounded once. The norm is recorded with `role` as 4 FLOPs an element, the rotation as
// 3.
at::Tensor prepare_heads(const at::Tensor& x, const HeadPreparation& how, std::string_view role = "");

}  // namespace tessera::ops
