// Products of bf16 matrices by tiles (AMX), for linear layers.
//
// A tile holds 16 rows of 64 bytes: of x 16 rows and 32 columns; of the weight 32 inputs and 16 outputs,
// pairs of inputs side by side. Four tiles of sums, [32, 32], take two tiles of each.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/gemm.h"

namespace tessera::ops {

// Whether this process may run what follows: the processor has tiles, and the system lends them.
bool tile_gemm_runs();

// The weight [N, K] of a linear layer, bf16, as tiles: [ceil(N / 32), ceil(K / 32), 2, 16, 16, 2], filled up
// with zeros. What is returned has the sizes [N, K]; the filling lies behind, in the same storage.
at::Tensor tile_gemm_pack(const at::Tensor& weight);

// activation(x weight^T + bias), x [..., K] bf16 -> [..., N]; `weight` from tile_gemm_pack; bias [N] of any
// dtype or undefined. Sums are fp32, and rounded once; a row does not depend on the others. Takes all
// threads.
at::Tensor tile_gemm_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            Activation activation);

}  // namespace tessera::ops
