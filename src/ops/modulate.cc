#include "ops/modulate.h"

#include <ATen/Functions.h>

#include "core/error.h"
#include "kernels/modulate.h"
#include "ops/operation.h"

namespace tessera::ops {
namespace {

bool has_kernel(const at::Tensor& x) {
  return x.is_cpu() && x.is_contiguous() &&
         (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf);
}

// Maps rows of x [B, S, C] to the vectors [C], [B, C] or [B, G, C] that apply to them.
class Vectors {
 public:
  Vectors(const at::Tensor& vectors, const at::Tensor& x)
      : width_(x.size(-1)),
        rows_(vectors.numel() == 0 ? 1 : x.numel() / vectors.numel()),
        vectors_(vectors.contiguous()) {
    TESSERA_CHECK(vectors.size(-1) == width_ && vectors.scalar_type() == at::kFloat &&
                      (vectors.dim() == 1 || vectors.size(0) == x.size(0)) &&
                      rows_ * vectors.numel() == x.numel(),
                  "{} vectors of {} features for {} rows of {}", vectors.numel() / width_, vectors.size(-1),
                  x.numel() / width_, width_);
  }

  kernels::RowVectors of_rows() const { return {vectors_.const_data_ptr<float>(), rows_}; }
  // Whether all rows share one vector, [C].
  bool is_one() const { return vectors_.numel() == width_; }
  at::Tensor one() const { return vectors_.view({width_}); }
  // [C], [B, 1, C] or [B, G, 1, C], which broadcasts over view(x).
  at::Tensor broadcast() const { return vectors_.dim() == 1 ? vectors_ : vectors_.unsqueeze(-2); }
  at::Tensor view(const at::Tensor& x) const {
    return vectors_.dim() == 3 ? x.unflatten(1, {vectors_.size(1), x.size(1) / vectors_.size(1)}) : x;
  }

 private:
  int64_t width_, rows_;
  at::Tensor vectors_;
};

}  // namespace

at::Tensor modulated_layer_norm(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                                double epsilon) {
  const OperationScope scope;
  const int64_t width = x.size(-1);
  TESSERA_CHECK(scale.sizes() == shift.sizes(), "scales and shifts differ in shape");
  const Vectors by(scale, x), plus(shift, x);
  record("modulated_layer_norm", "", x, 6 * x.numel(), {x, scale, shift});
  if (x.is_meta()) {
    at::Tensor out = at::empty_like(x);
    record_dataflow([&] {
      return Dataflow{"modulated_layer_norm", "", {x, scale, shift}, {out}, {{"epsilon", epsilon}}};
    });
    return out;
  }
  if (!has_kernel(x)) {
    // Kernels of other devices take weights in the dtype of x.
    const auto like_x = [&](const at::Tensor& vector) { return vector.to(x.scalar_type()); };
    if (by.is_one()) return at::layer_norm(x, {width}, like_x(by.one() + 1), like_x(plus.one()), epsilon);
    const at::Tensor normed = at::layer_norm(x, {width}, {}, {}, epsilon);
    at::Tensor out = at::empty_like(normed), to = by.view(out);
    at::addcmul_out(to, plus.broadcast(), by.view(normed), by.broadcast() + 1);
    return out;
  }
  at::Tensor out = at::empty_like(x);
  kernels::modulated_layer_norm_into(out, x, by.of_rows(), plus.of_rows(), epsilon);
  return out;
}

void add_gated_(at::Tensor& x, const at::Tensor& y, const at::Tensor& gate) {
  const OperationScope scope;
  TESSERA_CHECK(x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type(), "shapes differ");
  const Vectors by(gate, x);
  record("gated_add", "", x, 2 * x.numel(), {x, y, gate});
  record_dataflow([&] { return Dataflow{"gated_add", "", {x, y, gate}, {x}}; });
  if (x.is_meta()) return;
  if (!has_kernel(x) || !y.is_contiguous()) {
    by.view(x).addcmul_(by.view(y), by.broadcast());
    return;
  }
  kernels::add_gated_into(x, y, by.of_rows());
}

}  // namespace tessera::ops
