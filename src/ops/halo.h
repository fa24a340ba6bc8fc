// Rows of a picture around a part of it.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::ops {

// Those before the first row of the input of a convolution and after its last one, [B, C, rows, W], as the
// convolution sees them. Undefined at the edges of the picture, where it pads with zeros.
struct Halo {
  at::Tensor above, below;
};

}  // namespace tessera::ops
