// Activations that kernels apply to their results before these are rounded.
#pragma once

#include "kernels/kernel.h"

namespace tessera::kernels {

enum class Activation { kNone, kGelu, kGeluTanh, kRelu, kSilu };

// Activates one number within a kernel. kGelu has no effect here; the caller applies it.
TESSERA_INLINE float activate(float x, Activation activation) {
  // x (1 + tanh(z)) / 2 = x sigmoid(2 z), with z = sqrt(2 / pi) (x + 0.044715 x^3).
  if (activation == Activation::kGeluTanh) return silu_of(x, 1.5957691216F * (x + 0.044715F * x * x * x));
  if (activation == Activation::kSilu) return silu(x);
  if (activation == Activation::kRelu) return x < 0 ? 0.0F : x;
  return x;
}

}  // namespace tessera::kernels
