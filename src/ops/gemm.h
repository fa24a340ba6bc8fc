// Products of fp32 matrices on processors with AVX2 and FMA that have no AVX-512, for which oneDNN has no
// small products and MKL and oneDNN are slow in large ones. Weights may be held in 16 bits.
//
// A matrix b [K, N] is read in panels of 16 columns, each [K, 16], the last filled up with zeros, so that a
// product walks through memory in order and takes whole vectors.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/kernel.h"

namespace tessera::ops {

constexpr int64_t kPanel = 16;

// Whether this process may run what follows.
bool gemm_runs();

// c [m, n] = a [m, k] b [k, n], or c += that, on this thread. Rows of a and c lie `lda` and `ldc` elements
// apart, panels of b `panel_stride`. Sums go over k in runs that depend on k alone, so a row of c does not
// depend on the others.
void gemm(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t panel_stride,
          float* c, int64_t ldc, bool add);

enum class Activation { kNone, kGelu, kGeluTanh, kRelu, kSilu };

// Of one number, in a kernel. kGelu is the caller's: here it changes nothing.
TESSERA_INLINE float activate(float x, Activation activation) {
  // x times the sigmoid of twice sqrt(2 / pi) (x + 0.044715 x^3), which is what x (1 + tanh) / 2 comes to.
  if (activation == Activation::kGeluTanh) return silu_of(x, 1.5957691216F * (x + 0.044715F * x * x * x));
  if (activation == Activation::kSilu) return silu(x);
  if (activation == Activation::kRelu) return x < 0 ? 0.0F : x;
  return x;
}

// The weight [N, K] of a linear layer as panels of its transpose, [ceil(N / 16), K, 16], in its dtype: fp32,
// bf16 or fp16. What is returned has the sizes [N, K]; the filling of the last panel lies behind, in the same
// storage.
at::Tensor gemm_pack(const at::Tensor& weight);

// activation(x weight^T + bias), x [..., K] -> [..., N] in the dtype of x; `weight` from gemm_pack, in that
// dtype too; bias [N] of any or undefined. Sums are fp32, and rounded once. Takes all threads.
at::Tensor gemm_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       Activation activation);

}  // namespace tessera::ops
