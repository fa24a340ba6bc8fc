#include "kernels/gated_gelu.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "kernels/kernel.h"

namespace tessera::kernels {
namespace {

// x Phi(x), with the normal distribution function Phi as a polynomial in 1 / (1 + p |x|) times exp(-x^2 / 2)
// (Abramowitz and Stegun 1964, 7.1.26). The error is below 1e-7.
TESSERA_INLINE float gelu(float x) {
  const float t = (x < 0 ? -x : x) * 0.70710678F, k = 1.0F / (1.0F + 0.3275911F * t);
  float p = 1.061405429F;
  p = p * k - 1.453152027F;
  p = p * k + 1.421413741F;
  p = p * k - 0.284496736F;
  p = p * k + 0.254829592F;
  const float beyond = 0.5F * p * k * exp_approximate(-t * t);
  return x * (x < 0 ? beyond : 1.0F - beyond);
}

template <typename T>
TESSERA_INLINE void multiply_row_by_gelu(const T* x, const T* gate, T* y, int64_t count) {
  TESSERA_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) store(y + i, load(x[i]) * gelu(load(gate[i])));
}

// x, gate and y have rows of the same length, which may be strided.
template <typename T>
void multiply_by_gelu(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y) {
  const int64_t width = x.size(1);
  const auto row = [](const at::Tensor& rows, int64_t i) {
    return static_cast<T*>(rows.data_ptr()) + i * rows.stride(0);
  };
  at::parallel_for(0, x.size(0), std::max<int64_t>(1, 16384 / width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      run_kernel<multiply_row_by_gelu<T>>(static_cast<const T*>(row(x, i)),
                                          static_cast<const T*>(row(gate, i)), row(y, i), width);
  });
}

}  // namespace

void gated_gelu_into(const at::Tensor& y, const at::Tensor& x, const at::Tensor& gate) {
  const auto rows = [](const at::Tensor& all) { return all.reshape({-1, all.size(-1)}); };
  x.scalar_type() == at::kFloat ? multiply_by_gelu<float>(rows(x), rows(gate), rows(y))
                                : multiply_by_gelu<Bf16>(rows(x), rows(gate), rows(y));
}

}  // namespace tessera::kernels
