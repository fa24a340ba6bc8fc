#include "ops/modulate.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "core/error.h"
#include "ops/kernel.h"
#include "ops/operation.h"

namespace tessera::ops {
namespace {

// Normalises rows [begin, end). It passes three times over a row, which stays in the first-level cache.
template <typename T>
TESSERA_INLINE void norm_rows(const T* x, const float* scale, const float* shift, T* out, int64_t begin,
                              int64_t end, int64_t width, float epsilon) {
  for (int64_t row = begin; row < end; ++row) {
    const T* from = x + row * width;
    T* to = out + row * width;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; ++i) sum += load(from[i]);
    const float mean = sum / static_cast<float>(width);
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; ++i) {
      const float difference = load(from[i]) - mean;
      squares += difference * difference;
    }
    // With a variance beyond fp32 all elements would become the shift, which hides the overflow.
    const float variance = squares <= FLT_MAX ? squares / static_cast<float>(width) : NAN;
    const float factor = 1.0F / std::sqrt(variance + epsilon);
    for (int64_t i = 0; i < width; ++i) {
      store(to + i, (load(from[i]) - mean) * factor * (1.0F + scale[i]) + shift[i]);
    }
  }
}

template <typename T>
TESSERA_INLINE void gate_rows(T* x, const T* y, const float* gate, int64_t begin, int64_t end,
                              int64_t width) {
  for (int64_t row = begin; row < end; ++row) {
    T* to = x + row * width;
    const T* from = y + row * width;
    for (int64_t i = 0; i < width; ++i) store(to + i, load(to[i]) + gate[i] * load(from[i]));
  }
}

bool has_kernel(const at::Tensor& x) {
  return x.is_cpu() && x.is_contiguous() &&
         (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf);
}

// Calls `work` with a null pointer to the element type of x.
template <typename Work>
void with_elements(const at::Tensor& x, const Work& work) {
  if (x.scalar_type() == at::kFloat) return work(static_cast<float*>(nullptr));
  if (x.scalar_type() == at::kBFloat16) return work(static_cast<Bf16*>(nullptr));
  work(static_cast<Fp16*>(nullptr));
}

template <typename T>
T* data(const at::Tensor& x) {
  return static_cast<T*>(x.data_ptr());
}

constexpr int64_t kGrain = 16;  // minimum number of rows per task

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

  // The end of the run of rows from `row` on that share one vector, at most `end`.
  int64_t end_of(int64_t row, int64_t end) const { return std::min(end, (row / rows_ + 1) * rows_); }
  const float* of(int64_t row) const { return vectors_.const_data_ptr<float>() + row / rows_ * width_; }
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
  if (x.is_meta()) return at::empty_like(x);
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
  with_elements(x, [&]<typename T>(T* /*type*/) {
    at::parallel_for(0, x.numel() / width, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t next; begin < end; begin = next) {
        next = by.end_of(begin, end);
        run_kernel<norm_rows<T>>(data<const T>(x), by.of(begin), plus.of(begin), data<T>(out), begin, next,
                                 width, static_cast<float>(epsilon));
      }
    });
  });
  return out;
}

void add_gated_(at::Tensor& x, const at::Tensor& y, const at::Tensor& gate) {
  const OperationScope scope;
  const int64_t width = x.size(-1);
  TESSERA_CHECK(x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type(), "shapes differ");
  const Vectors by(gate, x);
  record("gated_add", "", x, 2 * x.numel(), {x, y, gate});
  if (x.is_meta()) return;
  if (!has_kernel(x) || !y.is_contiguous()) {
    by.view(x).addcmul_(by.view(y), by.broadcast());
    return;
  }
  with_elements(x, [&]<typename T>(T* /*type*/) {
    at::parallel_for(0, x.numel() / width, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t next; begin < end; begin = next) {
        next = by.end_of(begin, end);
        run_kernel<gate_rows<T>>(data<T>(x), data<const T>(y), by.of(begin), begin, next, width);
      }
    });
  });
}

}  // namespace tessera::ops
