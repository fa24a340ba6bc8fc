// The blocks that encoder and decoder of AutoencoderKL are made of (Esser et al., arXiv:2012.09841; names as
// in the checkpoints of diffusers). All tensors are [B, C, h, W] in channels-last, h of the rows at hand.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "models/resnet_block_2d.h"
#include "nn/conv.h"
#include "ops/linear.h"
#include "weights/scope.h"

namespace tessera::models {

// Attention over all positions with one head, beside the input. Reads the names of today (to_q, to_k, to_v,
// to_out.0) and those of old checkpoints (query, key, value, proj_attn).
struct AttentionBlock {
  AttentionBlock(const weights::Scope& scope, int64_t channels, int64_t norm_groups);
  at::Tensor operator()(at::Tensor x, const nn::Rows& rows) const;  // takes x over

  ops::GroupNorm group_norm;
  ops::Linear qkv, out;
};

// resnet, attention (may be absent), resnet.
struct MidBlock2D {
  MidBlock2D(const weights::Scope& scope, int64_t channels, int64_t norm_groups, bool with_attention);
  at::Tensor operator()(at::Tensor x, const nn::Rows& rows) const;  // takes x over

  std::vector<ResnetBlock2D> resnets;
  std::optional<AttentionBlock> attention;
};

// `layers` resnets, then a convolution that halves the sides. Leaves `rows` at the scale of what it gives.
struct DownEncoderBlock2D {
  DownEncoderBlock2D(const weights::Scope& scope, int64_t in, int64_t out, int64_t layers,
                     int64_t norm_groups, bool downsample);
  at::Tensor operator()(at::Tensor x, nn::Rows& rows) const;  // takes x over

  std::vector<ResnetBlock2D> resnets;
  std::optional<nn::PaddedDownsample2d> downsampler;
};

// `layers` resnets, then upsampling by two. Leaves `rows` at the scale of what it gives.
struct UpDecoderBlock2D {
  UpDecoderBlock2D(const weights::Scope& scope, int64_t in, int64_t out, int64_t layers, int64_t norm_groups,
                   bool upsample);
  at::Tensor operator()(at::Tensor x, nn::Rows& rows) const;  // takes x over

  std::vector<ResnetBlock2D> resnets;
  std::optional<nn::Upsample2d> upsampler;
};

}  // namespace tessera::models
