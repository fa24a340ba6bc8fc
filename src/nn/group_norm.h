// Group normalisation (Wu and He, arXiv:1803.08494) of channels-last tensors, with SiLU fused.
#pragma once

#include <ATen/core/Tensor.h>

#include "weights/scope.h"

namespace tessera::nn {

// y = (x - mean) / sqrt(variance + eps) * weight + bias, with the moments of each group of channels of a
// sample. Moments are fp32 over a few positions, shifted by the first of them, and merged in double: a large
// mean with a small variance stays exact. On the CPU x must be channels-last, in fp32 or bf16 (checked);
// results have its dtype.
struct GroupNorm {
  GroupNorm() = default;
  // Reads `weight` and `bias` [channels]. `groups` divides `channels` (checked).
  GroupNorm(const weights::Scope& scope, int64_t channels, int64_t groups, double eps);
  GroupNorm(const at::Tensor& weight, const at::Tensor& bias, int64_t groups, double eps);

  at::Tensor operator()(const at::Tensor& x) const;  // [B, C, H, W], a new tensor
  at::Tensor silu(const at::Tensor& x) const;        // followed by SiLU
  void silu_(at::Tensor& x) const;                   // the same in place

  int64_t groups = 1;
  double eps = 0;
  at::Tensor weight, bias;  // fp32 [C]
};

}  // namespace tessera::nn
