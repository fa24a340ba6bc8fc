// The U-Net and AutoencoderKL share this residual block (names as in the checkpoints of diffusers).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "nn/conv.h"
#include "ops/linear.h"
#include "weights/scope.h"

namespace tessera::models {

// Adds two convolutions, each after GroupNorm and SiLU, to the input (which passes through a 1x1 convolution
// if the number of channels changes). In a U-Net the step's embedding is added between the two.
struct ResnetBlock2D {
  using Activation = at::Tensor (*)(const at::Tensor&);
  struct Options {
    int64_t norm_groups = 32;
    double eps = 1e-6;
    int64_t embedding_channels = 0;   // of the step's embedding; 0 without one
    Activation activation = nullptr;  // in place of SiLU
  };
  ResnetBlock2D(const weights::Scope& scope, int64_t in, int64_t out, const Options& options);

  // x [B, in, h, W] -> [B, out, h, W], channels-last. Takes over x, and writes to its memory if nothing else
  // refers to it. `embedding` is [B, embedding_channels], after its SiLU.
  at::Tensor operator()(at::Tensor x, const nn::Rows& rows, const at::Tensor& embedding = {}) const;

  ops::GroupNorm norm1, norm2;
  nn::Conv2d conv1, conv2;
  std::optional<ops::Linear> time_emb_proj;
  std::optional<nn::Conv2d> conv_shortcut;
  Activation activation;

 private:
  at::Tensor with_activation(const at::Tensor& x, const nn::Rows& rows, const at::Tensor& embedding) const;
};

}  // namespace tessera::models
