// The autoencoder of Open-Sora 1.2: the two-dimensional VAE of Stable Diffusion XL for each frame, then the
// temporal one for clips of 17 frames, each independently. Names of weights are those of
// hpcai-tech/OpenSora-VAE-v1.2.
//
// Shapes: F frames, T latent frames (5 for each clip, and a quarter, rounded up, of the remaining frames), C
// latent channels, h x w latent size, H x W image size, h = H / 8.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/autoencoder_kl.h"
#include "models/family.h"
#include "models/stdit/temporal_vae.h"

namespace tessera::models {

struct VideoVaeConfig {
  AutoencoderKLConfig spatial;
  TemporalVaeConfig temporal;
  int64_t clip = 17;        // frames that are coded together
  int64_t micro_batch = 4;  // frames that go through the two-dimensional VAE together

  int64_t latent_clip() const;                  // latent frames of a whole clip
  int64_t latent_frames(int64_t frames) const;  // of a video
};

// Reads vae/config.json in its published form, in which `vae_2d` and `vae_temporal` give their types. The
// published files do not include their sizes; here they may have the keys of AutoencoderKL and of
// TemporalVaeConfig, whose defaults are the published sizes. Throws Error(kInput) for other types.
VideoVaeConfig read_video_vae_config(const JsonConfig& json);

// The latents of the model are (z - shift) / scale.
struct LatentStatistics {
  explicit LatentStatistics(const weights::Scope& scope, int64_t channels);  // reads `shift` and `scale`

  at::Tensor shift, scale;  // fp32 [C, 1, 1]
};

// Noise for the samples; without it, the means are used.
struct VideoVaeNoise {
  at::Tensor spatial;   // [F, C, h, w]
  at::Tensor temporal;  // [T, C, h, w]
};

class VideoVaeEncoder final : public Encoder {
 public:
  // `scope`: the root of the checkpoint.
  VideoVaeEncoder(const weights::Scope& scope, const VideoVaeConfig& config);
  // Frames [F, 3, H, W] in [-1, 1] -> latents [T, C, h, w] as the model takes them, fp32.
  at::Tensor encode(const at::Tensor& frames) const override { return encode(frames, {}); }
  // Returns a sample, or the means if there is no noise.
  at::Tensor encode(const at::Tensor& frames, const VideoVaeNoise& noise) const;
  // The first half: the means of the latents of each frame, or samples, times the scaling factor [F, C, h,
  // w].
  at::Tensor encode_frames(const at::Tensor& frames, const at::Tensor& noise = {}) const;

 private:
  VideoVaeConfig config_;
  AutoencoderKLEncoder spatial_;
  TemporalEncoder temporal_;
  LatentStatistics statistics_;
};

class VideoVaeDecoder final : public Decoder {
 public:
  // `scope`: the root of the checkpoint.
  VideoVaeDecoder(const weights::Scope& scope, const VideoVaeConfig& config);
  at::Tensor decode_clip(const at::Tensor& z, int64_t frames, nn::Tokens& tokens,
                         ClipMemory* memory) const override;
  Clip clip() const override { return {config_.clip, config_.latent_clip()}; }
  int64_t scale_factor() const override { return spatial_.scale_factor(); }
  int64_t clip_bytes(int64_t height, int64_t width) const override;

 private:
  VideoVaeConfig config_;
  AutoencoderKLDecoder spatial_;
  TemporalDecoder temporal_;
  LatentStatistics statistics_;
};

}  // namespace tessera::models
