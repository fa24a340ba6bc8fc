// Elementwise activations that no product has in it.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::ops {

// x * gelu(gate), GELU in its exact form (GEGLU, arXiv:2002.05202), on the CPU rounded once. x and gate [...,
// C] of one dtype and shape; rows may be strided, as parts of one product are. 2 FLOPs an element.
at::Tensor gated_gelu(const at::Tensor& x, const at::Tensor& gate);

// x * sigmoid(1.702 x) (arXiv:1606.08415). 3 FLOPs an element.
at::Tensor quick_gelu(const at::Tensor& x);

}  // namespace tessera::ops
