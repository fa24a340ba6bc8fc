// What adaptive layer norm does around the sublayers of a diffusion transformer (DiT, arXiv:2212.09748).
//
// Shapes: B samples, S tokens, C width, G groups of tokens that follow each other (the frames of a video).
// Vectors are fp32: [C] for all, [B, C] for each sample, or [B, G, C] for each group of S / G tokens.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::ops {

// layer_norm(x) * (1 + scale) + shift, without own weights. x [B, S, C] -> [B, S, C]; scale and shift alike.
// Statistics in fp32. 9 FLOPs an element. Off the CPU 1 + scale and shift, where there is one of each, or the
// normalised x, where there are more, are rounded to the dtype of x: one pass over x, or two.
at::Tensor modulated_layer_norm(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                                double epsilon);

// x += gate * y, rounded once. 2 FLOPs an element. x, y [B, S, C] contiguous, of one dtype.
void add_gated_(at::Tensor& x, const at::Tensor& y, const at::Tensor& gate);

}  // namespace tessera::ops
