#include "kernels/modulate.h"

#include <ATen/Parallel.h>

#include <cfloat>
#include <cmath>

#include "kernels/kernel.h"

namespace tessera::kernels {
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
    // With a variance beyond fp32, all elements would become the shift, which would hide the overflow.
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

}  // namespace

void modulated_layer_norm_into(const at::Tensor& out, const at::Tensor& x, RowVectors scale, RowVectors shift,
                               double epsilon) {
  const int64_t width = x.size(-1);
  with_elements(x, [&]<typename T>(T* /*type*/) {
    at::parallel_for(0, x.numel() / width, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t next; begin < end; begin = next) {
        next = scale.end_of(begin, end);
        run_kernel<norm_rows<T>>(data<const T>(x), scale.of(begin, width), shift.of(begin, width),
                                 data<T>(out), begin, next, width, static_cast<float>(epsilon));
      }
    });
  });
}

void add_gated_into(const at::Tensor& x, const at::Tensor& y, RowVectors gate) {
  const int64_t width = x.size(-1);
  with_elements(x, [&]<typename T>(T* /*type*/) {
    at::parallel_for(0, x.numel() / width, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t next; begin < end; begin = next) {
        next = gate.end_of(begin, end);
        run_kernel<gate_rows<T>>(data<T>(x), data<const T>(y), gate.of(begin, width), begin, next, width);
      }
    });
  });
}

}  // namespace tessera::kernels
