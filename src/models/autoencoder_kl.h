// AutoencoderKL maps pictures to latents and back (Rombach et al., arXiv:2112.10752), as in the `vae` folder
// of diffusers checkpoints. Encoder and decoder load separately; neither reads weights of the other.
//
// Shapes: B samples, C latent channels, h x w latent size, H x W image size, H = h * scale_factor.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "core/json.h"
#include "models/autoencoder_kl_blocks.h"
#include "models/family.h"

namespace tessera::models {

struct AutoencoderKLConfig {
  // Throws Error(kInput) for another class, for a block type or activation that is not implemented, and for
  // impossible sizes. A warning names unknown options.
  explicit AutoencoderKLConfig(const JsonConfig& config);

  int64_t scale_factor() const { return int64_t{1} << (block_out_channels.size() - 1); }

  int64_t in_channels, out_channels, latent_channels;
  std::vector<int64_t> block_out_channels;
  int64_t layers_per_block, norm_num_groups, sample_size;
  double scaling_factor, shift_factor;
  std::vector<double> latents_mean, latents_std;  // per latent channel; empty when absent
  bool use_quant_conv, use_post_quant_conv, mid_block_add_attention, force_upcast;
  ResnetBlock2D::Activation activation;
};

// The encoder predicts a normal distribution of latents. Both tensors are [B, C, h, w] in fp32, before
// scaling and shift.
struct LatentDistribution {
  at::Tensor mean;
  at::Tensor logvar;  // clamped to [-30, 20]
};

struct AutoencoderKLEncoder {
  // `scope`: the root of the checkpoint.
  AutoencoderKLEncoder(const weights::Scope& scope, const AutoencoderKLConfig& config);

  // image [B, in_channels, H, W] has any floating-point dtype and values in [-1, 1]. h and w are rounded
  // down. With `tokens`, whose grid is that of the pixels, `image` holds the local rows, in units of the
  // scale factor; if these are parts, H and W must be multiples of it (otherwise Error(kUsage)).
  LatentDistribution encode(const at::Tensor& image) const;
  LatentDistribution encode(const at::Tensor& image, nn::Tokens& tokens) const;

  AutoencoderKLConfig config;
  at::ScalarType dtype;
  nn::Conv2d conv_in;
  std::vector<DownEncoderBlock2D> down_blocks;
  MidBlock2D mid_block;
  ops::GroupNorm conv_norm_out;
  nn::Conv2d conv_out;
  std::optional<nn::Conv2d> quant_conv;
};

struct AutoencoderKLDecoder final : Decoder {
  // `scope`: the root of the checkpoint.
  AutoencoderKLDecoder(const weights::Scope& scope, const AutoencoderKLConfig& config);

  // Each of the latents is a frame.
  at::Tensor decode_clip(const at::Tensor& z, int64_t frames, nn::Tokens& tokens,
                         ClipMemory* memory) const override;
  // The same for latents as the network takes them, at the scale of `rows`.
  at::Tensor decode_rows(const at::Tensor& z, nn::Rows rows) const;
  int64_t scale_factor() const override { return config.scale_factor(); }
  int64_t tile_size() const override { return config.sample_size; }
  int64_t clip_bytes(int64_t height, int64_t width) const override {
    return height * width * scale_factor() * scale_factor() * bytes_per_pixel();
  }
  // The peak size of the tensors of decode(), in bytes per pixel of all pictures.
  int64_t bytes_per_pixel() const;

  AutoencoderKLConfig config;
  at::ScalarType dtype;
  std::optional<nn::Conv2d> post_quant_conv;
  nn::Conv2d conv_in;
  MidBlock2D mid_block;
  std::vector<UpDecoderBlock2D> up_blocks;
  ops::GroupNorm conv_norm_out;
  nn::Conv2d conv_out;
};

// Reads the scale from vae/config.json of `model`. Throws Error(kInput) if the latents do not have
// `channels`.
LatentScale read_autoencoder_kl_scale(const std::filesystem::path& model, int64_t channels);

// `folder` holds config.json and the weights. fp16 becomes fp32 on the CPU, which lacks fp16 convolutions,
// and where the config marks fp16 as overflowing (force_upcast). A warning names keys of this half that no
// layer reads. Throws Error(kInput) for files that are missing, damaged or of another model.
std::unique_ptr<AutoencoderKLDecoder> load_autoencoder_kl_decoder(const std::filesystem::path& folder,
                                                                  const LoadOptions& options,
                                                                  LoadStatistics& statistics);
std::unique_ptr<AutoencoderKLEncoder> load_autoencoder_kl_encoder(const std::filesystem::path& folder,
                                                                  const LoadOptions& options,
                                                                  LoadStatistics& statistics);

}  // namespace tessera::models
