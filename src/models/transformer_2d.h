// The transformer over the positions of a picture that U-Nets have beside their convolutions (Rombach et al.,
// arXiv:2112.10752). Weights and names: diffusers' Transformer2DModel.
//
// Shapes: B samples, C channels, h x W local rows and columns, n = h * W.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "nn/context.h"
#include "nn/conv.h"
#include "nn/feed_forward.h"
#include "nn/norm.h"

namespace tessera::models {

// Adds self-attention, attention to the prompt and a gated feed-forward to its input, each after a layer
// norm.
struct BasicTransformerBlock {
  BasicTransformerBlock(const weights::Scope& scope, int64_t width, int64_t heads, int64_t context_width);
  void operator()(at::Tensor& x, const nn::Rows& rows, nn::Context& context) const;  // x [B, n, C], in place

  nn::LayerNorm norm1;
  nn::ColumnParallel to_qkv;  // attn1
  nn::RowParallel to_out;
  nn::LayerNorm norm2;
  nn::CrossAttention attn2;
  nn::LayerNorm norm3;
  nn::GegluFeedForward ff;
  int64_t depth;
};

struct Transformer2DModel {
  struct Options {
    int64_t layers = 1, heads = 8, context_width = 768, norm_groups = 32;
    bool use_linear_projection = true;  // otherwise proj_in and proj_out are 1x1 convolutions
  };
  Transformer2DModel(const weights::Scope& scope, int64_t channels, const Options& options);

  // Adds its output to x [B, C, h, W], channels-last. Takes over x, and writes to its memory if nothing else
  // refers to it.
  at::Tensor operator()(at::Tensor x, const nn::Rows& rows, nn::Context& context) const;

  ops::GroupNorm norm;
  ops::Linear proj_in, proj_out;  // applied to each position
  std::vector<BasicTransformerBlock> transformer_blocks;
};

}  // namespace tessera::models
