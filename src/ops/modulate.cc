#include "ops/modulate.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "core/error.h"
#include "ops/kernel.h"

namespace tessera::ops {
namespace {

// Rows [begin, end). Three passes over a row, which stays in the first-level cache.
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
    const float factor = 1.0F / std::sqrt(squares / static_cast<float>(width) + epsilon);
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
         (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

template <typename T>
T* data(const at::Tensor& x) {
  return static_cast<T*>(x.data_ptr());
}

constexpr int64_t kGrain = 16;  // rows that are worth a task

}  // namespace

at::Tensor modulated_layer_norm(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                                double epsilon) {
  const int64_t width = x.size(-1);
  TESSERA_CHECK(scale.numel() == width && shift.numel() == width, "width {}", width);
  if (!has_kernel(x)) {
    const at::Tensor normed = at::layer_norm(x.to(at::kFloat), {width}, {}, {}, epsilon);
    return at::addcmul(shift, normed, scale + 1.0).to(x.scalar_type());
  }
  at::Tensor out = at::empty_like(x);
  at::parallel_for(0, x.numel() / width, kGrain, [&](int64_t begin, int64_t end) {
    const float *by = data<float>(scale), *plus = data<float>(shift);
    if (x.scalar_type() == at::kFloat) {
      run_kernel<norm_rows<float>>(data<float>(x), by, plus, data<float>(out), begin, end, width,
                                   static_cast<float>(epsilon));
    } else {
      run_kernel<norm_rows<Bf16>>(data<Bf16>(x), by, plus, data<Bf16>(out), begin, end, width,
                                  static_cast<float>(epsilon));
    }
  });
  return out;
}

void add_gated_(at::Tensor& x, const at::Tensor& y, const at::Tensor& gate) {
  const int64_t width = x.size(-1);
  TESSERA_CHECK(x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type() && gate.numel() == width,
                "shapes differ");
  if (!has_kernel(x) || !y.is_contiguous()) {
    x.copy_(at::addcmul(x.to(at::kFloat), y.to(at::kFloat), gate));
    return;
  }
  at::parallel_for(0, x.numel() / width, kGrain, [&](int64_t begin, int64_t end) {
    if (x.scalar_type() == at::kFloat) {
      run_kernel<gate_rows<float>>(data<float>(x), data<float>(y), data<float>(gate), begin, end, width);
    } else {
      run_kernel<gate_rows<Bf16>>(data<Bf16>(x), data<Bf16>(y), data<float>(gate), begin, end, width);
    }
  });
}

}  // namespace tessera::ops
