// The rows of an image around a part of it.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::kernels {

// The rows before the first and after the last row of the input of a convolution, [B, C, rows, W], as seen by
// the convolution. Undefined at the edges of the image, where the convolution pads with zeros.
struct Halo {
  at::Tensor above, below;
};

}  // namespace tessera::kernels
