// 3x3 convolutions with stride 1 and padding 1 by minimal filtering, F(2x2, 3x3) (Lavin and Gray,
// arXiv:1509.09308): 2x2 outputs from a 4x4 tile of the input with 16 products per pair of channels instead
// of 36.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "kernels/group_norm.h"
#include "kernels/halo.h"

namespace tessera::kernels {

constexpr int64_t kWinogradTaps = 16;  // products per tile and pair of channels

// Whether this is faster than oneDNN's direct convolution: from 64 channels on, if kernels/choices.h enables
// it.
bool winograd_is_faster(int64_t in, int64_t out, at::ScalarType dtype, at::Device device);

struct Winograd {
  // weight [out, in, 3, 3] in fp32, bias [out]; channels must be multiples of 32. Computes in `dtype`, fp32
  // or bf16: transformed weights, and tiles if is_multiplied(), are rounded to it once; products are summed
  // in fp32.
  Winograd(const at::Tensor& weight, const at::Tensor& bias, at::ScalarType dtype);

  // y = conv(x), or y += conv(x) if `add`. x [B, in, H, W], y [B, out, H, W], both channels-last, in `dtype`.
  // With `maps` the input is SiLU of the mapped x, which is neither rounded nor stored as a whole. `halo`
  // holds a row of the input on each side, channels-last, in `dtype`.
  void operator()(const at::Tensor& x, at::Tensor& y, bool add, const ChannelMaps* maps = nullptr,
                  const std::optional<Halo>& halo = {}) const;

  int64_t in_channels, out_channels;
  at::Tensor taps;  // 16, in the layout of make_taps() in kernels/winograd_tiles.h
  at::Tensor bias;  // fp32 [out]
};

}  // namespace tessera::kernels
