// The parts of a group norm: the moments of each group of channels, and the map of each channel that follows
// from them. Tensors are channels-last, in fp32 or bf16.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/activation.h"

namespace tessera::kernels {

// The affine map of each channel of a sample, y = (x - mean) * scale + bias: [C] each.
struct ChannelMap {
  const float *mean, *scale, *bias;
};

// The maps of all samples: fp32 [B, C], [B, C] and [C].
struct ChannelMaps {
  ChannelMap sample(int64_t b) const {
    return {mean[b].const_data_ptr<float>(), scale[b].const_data_ptr<float>(), bias.const_data_ptr<float>()};
  }
  ChannelMaps of_sample(int64_t b) const { return {mean.narrow(0, b, 1), scale.narrow(0, b, 1), bias}; }
  at::Tensor mean, scale, bias;
};

// Mean and biased variance of each group of channels of x + offset, double [B, groups, 2]. x [B, C, H, W],
// whose samples may be parts of larger tensors; offset fp32 [B, C], contiguous, or undefined. Moments are
// computed in fp32 over a few positions, shifted by the first of them, and merged in double, so that a large
// mean with a small variance stays exact.
at::Tensor group_moments(const at::Tensor& x, int64_t groups, const at::Tensor& offset);

// y = the mapped x, or SiLU of it if the activation is kSilu. x and y [B, C, H, W], of one dtype, may be the
// same; their samples may be parts of larger tensors.
void apply_maps(const ChannelMaps& maps, Activation activation, const at::Tensor& x, const at::Tensor& y);

// y = SiLU of the mapped x, in fp32. x and y [positions, channels].
void map_silu(const float* x, float* y, int64_t positions, int64_t channels, ChannelMap map);
void map_silu(const Bf16* x, float* y, int64_t positions, int64_t channels, ChannelMap map);

}  // namespace tessera::kernels
