// Nearest-neighbour upsampling by two followed by a 3x3 convolution with padding 1, computed from the small
// image by minimal filtering.
//
// Along one dimension, the pixels of the large image before and after the corner between the small image's
// pixels a0 and a1 are (g0 + g1) a0 + g2 a1 and g0 a0 + (g1 + g2) a1: two filters of two taps. F(3, 2) with
// the points 0, 1, -1 and infinity (Winograd; Lavin and Gray, arXiv:1509.09308) gives three corners of each
// with four products. At the point 1 both filters have the sum g0 + g1 + g2, so they share this product.
// Seven products give six outputs: in two dimensions 49 give 36, instead of the direct convolution's 324.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "kernels/halo.h"

namespace tessera::kernels {

constexpr int64_t kUpsampleTaps = int64_t{7} * 7;  // products per tile and pair of channels

// Faster than the direct convolution if winograd_is_faster().
struct WinogradUpsample {
  // weight [out, in, 3, 3] in fp32, bias [out]; channels must be multiples of 32 (checked). Computes in
  // `dtype`, fp32 or bf16: transformed weights, and tiles if is_multiplied(), are rounded to it once;
  // products are summed in fp32.
  WinogradUpsample(const at::Tensor& weight, const at::Tensor& bias, at::ScalarType dtype);

  // x [B, in, H, W] -> [B, out, 2 H, 2 W], both channels-last, in `dtype` (checked). `halo` holds a row of x
  // on each side, likewise.
  at::Tensor operator()(const at::Tensor& x, const std::optional<Halo>& halo = {}) const;

  int64_t in_channels, out_channels;
  at::Tensor taps;  // 7 x 7, in the layout of make_taps() in kernels/winograd_tiles.h
  at::Tensor bias;  // fp32 [out]
};

}  // namespace tessera::kernels
