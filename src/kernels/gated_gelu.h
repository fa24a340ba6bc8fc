// The product with the exact form of GELU (GEGLU, arXiv:2002.05202).
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::kernels {

// y = x * gelu(gate), rounded once. x, gate and y [..., C] are of one dtype, fp32 or bf16; rows may be
// strided.
void gated_gelu_into(const at::Tensor& y, const at::Tensor& x, const at::Tensor& gate);

}  // namespace tessera::kernels
