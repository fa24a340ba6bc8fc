// The autoencoder of FLUX.2: diffusers' AutoencoderKLFlux2, which has the networks of AutoencoderKL. Blocks
// of 2 x 2 of its latents become the channels of the latents that are denoised; these have the mean and the
// deviation that a batch norm learned in training.
//
// Shapes: B samples, C latent channels, h x w the size of packed latents [B, 4 C, h, w], h' of their rows
// local, H x W picture size.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>

#include "core/json.h"
#include "models/autoencoder_kl.h"
#include "models/family.h"

namespace tessera::models {

struct AutoencoderKLFlux2Config {
  // Throws Error(kInput) as AutoencoderKLConfig does.
  explicit AutoencoderKLFlux2Config(const JsonConfig& json);

  AutoencoderKLConfig encoder, decoder;  // each with its own widths
  double batch_norm_eps;

  int64_t channels() const { return 4 * decoder.latent_channels; }

 private:
  // `options`: those of the encoder, in the form of AutoencoderKLConfig.
  AutoencoderKLFlux2Config(const JsonConfig& json, const JsonConfig& options);
};

// The statistics of a batch norm over the channels of packed latents, from training.
struct Flux2BatchNorm {
  // `scope`: the root of the checkpoint.
  Flux2BatchNorm(const weights::Scope& scope, const AutoencoderKLFlux2Config& config);

  // Turns packed latents z [B, 4 C, h', w], as they are denoised, into those of the network, fp32 [B, C, 2
  // h', 2 w], which diffusers' pipelines return for the output type "latent".
  at::Tensor unpacked(const at::Tensor& z) const;
  at::Tensor packed(const at::Tensor& z) const;  // the inverse

  at::Tensor mean, deviation;  // fp32 [4 C, 1, 1]
};

struct AutoencoderKLFlux2Encoder final : Encoder {
  // `scope`: the root of the checkpoint.
  AutoencoderKLFlux2Encoder(const weights::Scope& scope, const AutoencoderKLFlux2Config& config);

  // Each picture is a frame: [B, 3, H, W] -> [B, 4 C, h, w]. H and W must be multiples of the pixels of a
  // packed latent (checked).
  at::Tensor encode(const at::Tensor& frames) const override;

  Flux2BatchNorm norm;
  AutoencoderKLEncoder network;
};

struct AutoencoderKLFlux2Decoder final : Decoder {
  // `scope`: the root of the checkpoint.
  AutoencoderKLFlux2Decoder(const weights::Scope& scope, const AutoencoderKLFlux2Config& config);

  // Each of the latents is a frame.
  at::Tensor decode_clip(const at::Tensor& z, int64_t frames, nn::Tokens& tokens,
                         ClipMemory* memory) const override;
  int64_t scale_factor() const override { return 2 * network.scale_factor(); }
  int64_t tile_size() const override { return network.tile_size(); }
  int64_t clip_bytes(int64_t height, int64_t width) const override {
    return network.clip_bytes(2 * height, 2 * width);
  }

  Flux2BatchNorm norm;
  AutoencoderKLDecoder network;
};

// Reads the scale from vae/config.json of `model`. Throws Error(kInput) if packed latents do not have
// `channels`.
LatentScale read_autoencoder_kl_flux2_scale(const std::filesystem::path& model, int64_t channels);

// Load one half of vae/ of a diffusers folder. On the CPU fp16 becomes fp32.
std::unique_ptr<Decoder> load_autoencoder_kl_flux2_decoder(const std::filesystem::path& model,
                                                           const LoadOptions& options,
                                                           LoadStatistics& statistics);
std::unique_ptr<Encoder> load_autoencoder_kl_flux2_encoder(const std::filesystem::path& model,
                                                           const LoadOptions& options,
                                                           LoadStatistics& statistics);

// Applies Flux2BatchNorm::unpacked() to latents on the CPU. Reads no other weights of vae/.
at::Tensor unpacked_flux2_latents(const std::filesystem::path& model, const LoadOptions& options,
                                  const at::Tensor& z);

}  // namespace tessera::models
