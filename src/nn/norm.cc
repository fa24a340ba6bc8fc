#include "nn/norm.h"

#include "ops/modulate.h"
#include "ops/operation.h"

namespace tessera::nn {

RmsNorm::RmsNorm(const weights::Scope& scope, int64_t width, double epsilon)
    : weight(scope.with_dtype(at::kFloat).tensor("weight", {width})),
      epsilon(epsilon),
      dtype(scope.dtype()),
      role(scope.name()) {}

at::Tensor RmsNorm::operator()(const at::Tensor& x) const {
  const ops::OperationScope scope;
  ops::record("rms_norm", role, x, 4 * x.numel(), {x, weight});
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor scale = at::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + epsilon);
  at::Tensor out = (wide * scale).mul_(weight).to(dtype);
  ops::record_dataflow(
      [&] { return ops::Dataflow{"rms_norm", role, {x, weight}, {out}, {{"epsilon", epsilon}}}; });
  return out;
}

LayerNorm::LayerNorm(const weights::Scope& scope, int64_t width, double epsilon)
    : scale(scope.with_dtype(at::kFloat).tensor("weight", {width}) - 1),
      shift(scope.with_dtype(at::kFloat).tensor("bias", {width})),
      epsilon(epsilon) {}

at::Tensor LayerNorm::operator()(const at::Tensor& x) const {
  return ops::modulated_layer_norm(x, scale, shift, epsilon);
}

}  // namespace tessera::nn
