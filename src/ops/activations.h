// Elementwise activations that are not part of a matrix product.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::ops {

// x * gelu(gate) with the exact form of GELU (GEGLU, arXiv:2002.05202); rounded once on the CPU. x and gate
// [..., C] must have the same dtype and shape; rows may be strided, such as parts of one product. 2 FLOPs per
// element.
at::Tensor gated_gelu(const at::Tensor& x, const at::Tensor& gate);

// x * sigmoid(1.702 x) (arXiv:1606.08415). 3 FLOPs per element.
at::Tensor quick_gelu(const at::Tensor& x);

}  // namespace tessera::ops
