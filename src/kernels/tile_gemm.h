// Products of bf16 matrices by tiles (AMX), for linear layers.
//
// A tile holds 16 rows of 64 bytes: 16 rows and 32 columns of x, or 32 inputs and 16 outputs of the weight,
// with pairs of inputs side by side. Four tiles of sums, [32, 32], need two tiles of each.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/gemm.h"

namespace tessera::kernels {

// Whether this process can run the functions below: the processor has tiles, and the system permits their
// use.
bool tile_gemm_runs();

// Packs the weight [N, K] of a linear layer, bf16, into tiles: [ceil(N / 32), ceil(K / 32), 2, 16, 16, 2],
// padded with zeros. The result has sizes [N, K]; the padding follows in the same storage.
at::Tensor tile_gemm_pack(const at::Tensor& weight);

// activation(x weight^T + bias), x [..., K] bf16 -> [..., N]. `weight` comes from tile_gemm_pack(); bias [N]
// has any dtype or is undefined. Sums are fp32 and rounded once; a row does not depend on other rows. Uses
// all threads.
at::Tensor tile_gemm_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            Activation activation);

}  // namespace tessera::kernels
