// Normalisation over the last dim.
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

}  // namespace tessera::nn
