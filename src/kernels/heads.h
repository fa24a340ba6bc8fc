// The norm and the rotation of the heads of queries and keys in one pass.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::kernels {

constexpr int64_t kMaxHeadDepth = 512;

// The features of a head that rotate together, as pair i: 2 i and 2 i + 1, or i and D / 2 + i.
enum class RotaryPairs { kAdjacent, kHalves };

struct HeadPreparation {
  at::Tensor weight = {};  // of the norm, fp32 [D]; undefined: no norm
  double epsilon = 0;
  at::Tensor angles = {};      // cosines and sines by token, fp32 [n, D / 2, 2]; undefined: no rotation
  bool rotates_first = false;  // rotates before the norm instead of after it
  RotaryPairs pairs = RotaryPairs::kAdjacent;
};

// Normalises each head of x [B, n, H * depth] and rotates its pairs by the angles of its token.
// Computed in fp32, rounded once. The last dimension of x has stride 1; `out` is contiguous, in the dtype of
// x: fp32, bf16 or fp16. `depth` is at most kMaxHeadDepth.
void prepare_heads_into(const at::Tensor& out, const at::Tensor& x, const HeadPreparation& how,
                        int64_t depth);

}  // namespace tessera::kernels
