// Normalisation over the last dimension.
#pragma once

#include <ATen/core/Tensor.h>

#include "weights/scope.h"

namespace tessera::nn {

// x / sqrt(mean(x^2) + epsilon) * weight (RMSNorm, arXiv:1910.07467), computed in fp32 and rounded once.
struct RmsNorm {
  // Reads `weight` [width].
  RmsNorm(const weights::Scope& scope, int64_t width, double epsilon);

  // x [..., width] of any floating-point dtype -> the same shape in the dtype of the scope.
  at::Tensor operator()(const at::Tensor& x) const;

  at::Tensor weight;  // fp32 [width]
  double epsilon;
  at::ScalarType dtype;
  std::string role;  // for ops::Operation
};

// Layer norm (arXiv:1607.06450) with weights: (x - mean) / sqrt(variance + epsilon) * weight + bias. The
// statistics are fp32; the result is rounded once.
struct LayerNorm {
  // Reads `weight` and `bias` [width].
  LayerNorm(const weights::Scope& scope, int64_t width, double epsilon);

  at::Tensor operator()(const at::Tensor& x) const;  // [B, S, width]

  at::Tensor scale, shift;  // fp32 [width]: weight - 1 and bias, as ops::modulated_layer_norm expects them
  double epsilon;
};

}  // namespace tessera::nn
