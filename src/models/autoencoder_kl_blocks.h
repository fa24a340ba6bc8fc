// The encoder and the decoder of AutoencoderKL consist of these blocks (Esser et al., arXiv:2012.09841; names
// as in the checkpoints of diffusers). All tensors are [B, C, h, W] in channels-last, where h counts the
// local rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "models/resnet_block_2d.h"
#include "nn/conv.h"
#include "ops/linear.h"
#include "weights/scope.h"

namespace tessera::models {

// Adds single-head attention over all positions to its input. Reads today's names (to_q, to_k, to_v,
// to_out.0) and those of old checkpoints (query, key, value, proj_attn).
struct AttentionBlock {
  AttentionBlock(const weights::Scope& scope, int64_t channels, int64_t norm_groups);
  at::Tensor operator()(at::Tensor x, const nn::Rows& rows) const;  // takes x over

  ops::GroupNorm group_norm;
  ops::Linear qkv, out;
};

// Applies a resnet, attention (if present) and another resnet.
struct MidBlock2D {
  MidBlock2D(const weights::Scope& scope, int64_t channels, const ResnetBlock2D::Options& resnet,
             bool with_attention);
  at::Tensor operator()(at::Tensor x, const nn::Rows& rows) const;  // takes x over

  std::vector<ResnetBlock2D> resnets;
  std::optional<AttentionBlock> attention;
};

// Applies `layers` resnets, then a convolution that halves the sides. Leaves `rows` at the scale of the
// output.
struct DownEncoderBlock2D {
  DownEncoderBlock2D(const weights::Scope& scope, int64_t in, int64_t out, int64_t layers,
                     const ResnetBlock2D::Options& resnet, bool downsample);
  at::Tensor operator()(at::Tensor x, nn::Rows& rows) const;  // takes x over

  std::vector<ResnetBlock2D> resnets;
  std::optional<nn::PaddedDownsample2d> downsampler;
};

// Applies `layers` resnets, then upsamples by two. Leaves `rows` at the scale of the output.
struct UpDecoderBlock2D {
  UpDecoderBlock2D(const weights::Scope& scope, int64_t in, int64_t out, int64_t layers,
                   const ResnetBlock2D::Options& resnet, bool upsample);
  at::Tensor operator()(at::Tensor x, nn::Rows& rows) const;  // takes x over

  std::vector<ResnetBlock2D> resnets;
  std::optional<nn::Upsample2d> upsampler;
};

}  // namespace tessera::models
