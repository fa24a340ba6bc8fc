// The modulation that adaptive layer norm applies around the sublayers of a diffusion transformer (DiT,
// arXiv:2212.09748).
//
// Shapes: B samples, S tokens, C width, G groups of consecutive tokens (the frames of a video). Vectors are
// fp32: [C] for all, [B, C] for each sample, or [B, G, C] for each group of S / G tokens.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::ops {

// layer_norm(x) * (1 + scale) + shift, where the norm has no weights. x [B, S, C] -> [B, S, C]; scale and
// shift have the same shape. Statistics are fp32. 9 FLOPs per element. On other devices than the CPU, if
// there is only one of each, 1 + scale and shift are rounded to the dtype of x (one pass over x); otherwise
// the normalised x is rounded (two passes).
at::Tensor modulated_layer_norm(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                                double epsilon);

// x += gate * y, rounded once. 2 FLOPs per element. x, y [B, S, C] contiguous, with the same dtype.
void add_gated_(at::Tensor& x, const at::Tensor& y, const at::Tensor& gate);

}  // namespace tessera::ops
