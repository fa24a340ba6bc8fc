#include "nn/norm.h"

namespace tessera::nn {

RmsNorm::RmsNorm(const weights::Scope& scope, int64_t width, double epsilon)
    : weight(scope.with_dtype(at::kFloat).tensor("weight", {width})),
      epsilon(epsilon),
      dtype(scope.dtype()) {}

at::Tensor RmsNorm::operator()(const at::Tensor& x) const {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor scale = at::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + epsilon);
  return (wide * scale).mul_(weight).to(dtype);
}

}  // namespace tessera::nn
