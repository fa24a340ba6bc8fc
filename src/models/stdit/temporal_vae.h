// The temporal autoencoder of Open-Sora 1.2: it compresses the latents of a two-dimensional VAE to a quarter
// of the frames, a clip at a time. Names of weights are those of hpcai-tech/OpenSora-VAE-v1.2, below
// "temporal_vae".
//
// Shapes: F frames of latents of a clip, T = F / 4 (rounded up) of temporal latents, h x w local rows and
// columns.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "core/json.h"
#include "nn/causal_conv.h"
#include "nn/rows.h"
#include "weights/scope.h"

namespace tessera::models {

struct TemporalVaeConfig {
  explicit TemporalVaeConfig(const JsonConfig& json);  // Error(kInput) names what is not supported

  int64_t in_out_channels, latent_embed_dim, embed_dim, filters, num_res_blocks, norm_groups;
  std::vector<int64_t> channel_multipliers;
  std::vector<bool> temporal_downsample;  // after each level except the last

  int64_t levels() const { return static_cast<int64_t>(channel_multipliers.size()); }
  int64_t channels(int64_t level) const { return filters * channel_multipliers[static_cast<size_t>(level)]; }
  bool halves_after(int64_t level) const { return temporal_downsample[static_cast<size_t>(level)]; }
  int64_t time_factor() const;  // frames per temporal latent
};

struct TemporalResBlock {
  TemporalResBlock(const weights::Scope& scope, int64_t in, int64_t out, int64_t norm_groups);
  at::Tensor operator()(const at::Tensor& x, const nn::Rows& rows) const;

  ops::GroupNorm norm1, norm2;
  nn::CausalConv3d conv1, conv2;
  std::optional<nn::CausalConv3d> conv3;  // of the shortcut, if the number of channels changes
};

// Blocks, and a convolution after the levels that change the number of frames.
struct TemporalLevel {
  std::vector<TemporalResBlock> blocks;
  std::optional<nn::CausalConv3d> resample;
};

class TemporalEncoder {
 public:
  TemporalEncoder(const weights::Scope& scope, const TemporalVaeConfig& config);
  // Latents of a clip [F, C, h, w] -> mean and logarithm of the variance of the temporal ones, [T, embed_dim,
  // h, w] each, fp32. See nn/causal_conv.h for who must call this together.
  std::pair<at::Tensor, at::Tensor> operator()(const at::Tensor& x, const nn::Rows& rows) const;

 private:
  TemporalVaeConfig config_;
  nn::CausalConv3d conv_in_, conv2_, quant_conv_;
  std::vector<TemporalLevel> levels_;
  std::vector<TemporalResBlock> res_blocks_;
  ops::GroupNorm norm1_;
  at::ScalarType dtype_;
};

class TemporalDecoder {
 public:
  TemporalDecoder(const weights::Scope& scope, const TemporalVaeConfig& config);
  // Temporal latents of a clip [T, embed_dim, h, w] -> its `frames` frames of latents, fp32 [F, C, h, w].
  at::Tensor operator()(const at::Tensor& z, int64_t frames, const nn::Rows& rows) const;

 private:
  TemporalVaeConfig config_;
  nn::CausalConv3d post_quant_conv_, conv1_, conv_out_;
  std::vector<TemporalResBlock> res_blocks_;
  std::vector<TemporalLevel> levels_;  // from the last level to the first
  ops::GroupNorm norm1_;
  at::ScalarType dtype_;
};

}  // namespace tessera::models
