// Products of fp32 matrices on processors with AVX2 and FMA but without AVX-512, where oneDNN has no small
// products, and MKL and oneDNN are slow at large ones. Weights may be stored in 16 bits.
//
// A matrix b [K, N] is stored in panels of 16 columns, each [K, 16], the last padded with zeros, so that a
// product reads memory sequentially and in whole vectors.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/activation.h"

namespace tessera::kernels {

constexpr int64_t kPanel = 16;

// c [m, n] = a [m, k] b [k, n], or c += a b if `add`, on the calling thread. Rows of a and c are `lda` and
// `ldc` elements apart, panels of b `panel_stride`. Sums over k are split into runs that depend only on k, so
// a row of c does not depend on other rows.
void gemm(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t panel_stride,
          float* c, int64_t ldc, bool add);

// Packs the weight [N, K] of a linear layer (fp32, bf16 or fp16) into panels of its transpose, [ceil(N / 16),
// K, 16], in its dtype. The result has sizes [N, K]; the padding of the last panel follows in the same
// storage.
at::Tensor gemm_pack(const at::Tensor& weight);

// activation(x weight^T + bias), x [..., K] -> [..., N] in the dtype of x. `weight` comes from gemm_pack() in
// the same dtype; bias [N] has any dtype or is undefined. Sums are fp32 and rounded once. Uses all threads.
at::Tensor gemm_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       Activation activation);

// The same for a weight [N, K] in the form of the file, bit for bit. Panels are packed while they are
// multiplied, once for each block of 120 rows of x or more.
at::Tensor gemm_linear_as_stored(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                 Activation activation);

}  // namespace tessera::kernels
