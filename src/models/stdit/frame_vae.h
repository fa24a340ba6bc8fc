// The autoencoder of Open-Sora 1.1: the VAE of Stable Diffusion, which encodes each frame independently.
//
// Shapes: F frames, C latent channels, h x w latent size, H x W image size.
#pragma once

#include <memory>
#include <utility>

#include "models/autoencoder_kl.h"
#include "models/family.h"

namespace tessera::models {

// The factor for the latents of a frame in versions 1.1 and 1.2, whatever the VAE's own file contains.
inline constexpr double kFrameScalingFactor = 0.18215;

class FrameDecoder final : public Decoder {
 public:
  // `micro_batch` frames are decoded together.
  explicit FrameDecoder(std::shared_ptr<const AutoencoderKLDecoder> decoder, int64_t micro_batch = 4)
      : decoder_(std::move(decoder)), micro_batch_(micro_batch) {}
  at::Tensor decode_clip(const at::Tensor& z, int64_t /*frames*/, nn::Tokens& tokens,
                         ClipMemory* /*memory*/) const override {
    return decoder_->decode(z, tokens);
  }
  Clip clip() const override { return {micro_batch_, micro_batch_}; }
  int64_t scale_factor() const override { return decoder_->scale_factor(); }
  int64_t clip_bytes(int64_t height, int64_t width) const override {
    return micro_batch_ * decoder_->clip_bytes(height, width);
  }

 private:
  std::shared_ptr<const AutoencoderKLDecoder> decoder_;
  int64_t micro_batch_;
};

class FrameEncoder final : public Encoder {
 public:
  explicit FrameEncoder(std::unique_ptr<const AutoencoderKLEncoder> encoder) : encoder_(std::move(encoder)) {}
  // Frames [F, 3, H, W] in [-1, 1] -> means of the latents [F, C, h, w], scaled, fp32.
  at::Tensor encode(const at::Tensor& frames) const override;

 private:
  std::unique_ptr<const AutoencoderKLEncoder> encoder_;
};

// Loaded from `vae`, in the form in which stabilityai/sd-vae-ft-ema is published.
std::unique_ptr<Decoder> load_frame_decoder(const std::filesystem::path& model, const LoadOptions& options,
                                            LoadStatistics& statistics);
std::unique_ptr<Encoder> load_frame_encoder(const std::filesystem::path& model, const LoadOptions& options,
                                            LoadStatistics& statistics);

}  // namespace tessera::models
