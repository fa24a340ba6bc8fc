#include "models/stdit/frame_vae.h"

#include <ATen/Functions.h>

namespace tessera::models {

at::Tensor FrameEncoder::encode(const at::Tensor& frames) const {
  return encoder_->encode(frames).mean * kFrameScalingFactor;
}

std::unique_ptr<Decoder> load_frame_decoder(const std::filesystem::path& model, const LoadOptions& options,
                                            LoadStatistics& statistics) {
  auto decoder = load_autoencoder_kl_decoder(model / "vae", options, statistics);
  decoder->config.scaling_factor = kFrameScalingFactor;
  decoder->config.shift_factor = 0;
  return std::make_unique<FrameDecoder>(std::move(decoder));
}

std::unique_ptr<Encoder> load_frame_encoder(const std::filesystem::path& model, const LoadOptions& options,
                                            LoadStatistics& statistics) {
  return std::make_unique<FrameEncoder>(load_autoencoder_kl_encoder(model / "vae", options, statistics));
}

}  // namespace tessera::models
