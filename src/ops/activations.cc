#include "ops/activations.h"

#include <ATen/Functions.h>

#include "core/error.h"
#include "kernels/gated_gelu.h"
#include "ops/operation.h"

namespace tessera::ops {
at::Tensor gated_gelu(const at::Tensor& x, const at::Tensor& gate) {
  const OperationScope scope;
  TESSERA_CHECK(x.sizes() == gate.sizes() && x.scalar_type() == gate.scalar_type() && x.stride(-1) == 1 &&
                    gate.stride(-1) == 1,
                "gated GELU of {} with a gate of {}", fmt::join(x.sizes(), " x "),
                fmt::join(gate.sizes(), " x "));
  const auto dtype = x.scalar_type();
  if (!x.is_cpu() || (dtype != at::kFloat && dtype != at::kBFloat16)) {
    at::Tensor y = at::gelu(gate).mul_(x);
    record("gated_gelu", "", y, 2 * y.numel(), {x, gate});
    record_dataflow([&] { return Dataflow{"gated_gelu", "", {x, gate}, {y}}; });
    return y;
  }
  at::Tensor y = at::empty(x.sizes(), x.options());
  record("gated_gelu", "", y, 2 * y.numel(), {x, gate});
  kernels::gated_gelu_into(y, x, gate);
  return y;
}

at::Tensor quick_gelu(const at::Tensor& x) {
  const OperationScope scope;
  at::Tensor y = at::sigmoid(x * 1.702).mul_(x);
  record("quick_gelu", "", y, 3 * y.numel(), {x});
  record_dataflow([&] { return Dataflow{"quick_gelu", "", {x}, {y}}; });
  return y;
}

}  // namespace tessera::ops
