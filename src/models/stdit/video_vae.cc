#include "models/stdit/video_vae.h"

#include <ATen/Functions.h>

#include "core/error.h"
#include "models/stdit/frame_vae.h"

namespace tessera::models {
namespace {

// Returns a sample of a normal distribution, drawn with `noise`, or its mean.
at::Tensor sample(const at::Tensor& mean, const at::Tensor& logvar, const at::Tensor& noise) {
  return noise.defined() ? mean + at::exp(0.5 * logvar) * noise : mean;
}

at::Tensor some(const at::Tensor& all, int64_t begin, int64_t count) {
  return all.defined() ? all.narrow(0, begin, count) : all;
}

// Returns the options of the two-dimensional VAE in the form of AutoencoderKLConfig.
JsonConfig spatial_options(const JsonConfig& json) {
  const JsonConfig given = json.object("vae_2d");
  if (given.string("type", "VideoAutoencoderKL") != "VideoAutoencoderKL")
    given.fail("type", "\"VideoAutoencoderKL\"");
  // These are the options of Stable Diffusion XL.
  Json options = {{"block_out_channels", {128, 256, 512, 512}}, {"layers_per_block", 2}};
  options.update(given.values());
  const size_t levels = given.with(options).integers("block_out_channels").size();
  options["down_block_types"] = std::vector<std::string>(levels, "DownEncoderBlock2D");
  options["up_block_types"] = std::vector<std::string>(levels, "UpDecoderBlock2D");
  options["scaling_factor"] = kFrameScalingFactor;
  if (!options.contains("sample_size")) options["sample_size"] = 1024;
  return given.with(std::move(options));
}

JsonConfig temporal_options(const JsonConfig& json) {
  JsonConfig given = json.object("vae_temporal");
  if (given.string("type", "VAE_Temporal_SD") != "VAE_Temporal_SD") given.fail("type", "\"VAE_Temporal_SD\"");
  return given;
}

}  // namespace

VideoVaeConfig read_video_vae_config(const JsonConfig& json) {
  constexpr int64_t kMostFrames = 1024;
  if (json.string("model_type", "VideoAutoencoderPipeline") != "VideoAutoencoderPipeline")
    json.fail("model_type", "\"VideoAutoencoderPipeline\"");
  const JsonConfig spatial = json.object("vae_2d");
  return {.spatial = AutoencoderKLConfig(spatial_options(json)),
          .temporal = TemporalVaeConfig(temporal_options(json)),
          .clip = json.count("micro_frame_size", kMostFrames, 17),
          .micro_batch = spatial.count("micro_batch_size", kMostFrames, 4)};
}

int64_t VideoVaeConfig::latent_clip() const {
  const int64_t factor = temporal.time_factor();
  return (clip + factor - 1) / factor;
}

int64_t VideoVaeConfig::latent_frames(int64_t frames) const {
  const int64_t factor = temporal.time_factor();
  return frames / clip * latent_clip() + (frames % clip + factor - 1) / factor;
}

LatentStatistics::LatentStatistics(const weights::Scope& scope, int64_t channels) {
  const auto read = [&](const char* name) {
    return scope.with_dtype(at::kFloat).tensor(name, {1, channels, 1, 1, 1}).view({channels, 1, 1});
  };
  shift = read("shift");
  scale = read("scale");
}

VideoVaeEncoder::VideoVaeEncoder(const weights::Scope& scope, const VideoVaeConfig& config)
    : config_(config),
      spatial_(scope / "spatial_vae" / "module", config.spatial),
      temporal_(scope / "temporal_vae", config.temporal),
      statistics_(scope, config.temporal.embed_dim) {}

at::Tensor VideoVaeEncoder::encode_frames(const at::Tensor& frames, const at::Tensor& noise) const {
  std::vector<at::Tensor> latents;
  for (int64_t first = 0; first < frames.size(0); first += config_.micro_batch) {
    const int64_t count = std::min(config_.micro_batch, frames.size(0) - first);
    const LatentDistribution found = spatial_.encode(frames.narrow(0, first, count));
    latents.push_back(sample(found.mean, found.logvar, some(noise, first, count)) *
                      config_.spatial.scaling_factor);
  }
  return at::concat(latents);
}

at::Tensor VideoVaeEncoder::encode(const at::Tensor& frames, const VideoVaeNoise& noise) const {
  const at::Tensor x = encode_frames(frames, noise.spatial);
  nn::Tokens tokens(parallel::Grid{.rows = x.size(2), .columns = x.size(3)});
  const nn::Rows rows(tokens);
  std::vector<at::Tensor> latents;
  for (int64_t first = 0, done = 0; first < x.size(0); first += config_.clip) {
    const auto [mean, logvar] =
        temporal_(x.narrow(0, first, std::min(config_.clip, x.size(0) - first)), rows);
    latents.push_back(sample(mean, logvar, some(noise.temporal, done, mean.size(0))));
    done += mean.size(0);
  }
  return (at::concat(latents) - statistics_.shift) / statistics_.scale;
}

VideoVaeDecoder::VideoVaeDecoder(const weights::Scope& scope, const VideoVaeConfig& config)
    : config_(config),
      spatial_(scope / "spatial_vae" / "module", config.spatial),
      temporal_(scope / "temporal_vae", config.temporal),
      statistics_(scope, config.temporal.embed_dim) {}

at::Tensor VideoVaeDecoder::decode_clip(const at::Tensor& z, int64_t frames, nn::Tokens& tokens,
                                        ClipMemory* /*memory*/) const {
  TESSERA_CHECK(frames <= config_.clip && z.size(0) == config_.latent_frames(frames),
                "{} latent frames for a clip of {} frames", z.size(0), frames);
  const at::Tensor x =
      temporal_(z * statistics_.scale + statistics_.shift, frames, nn::Rows(tokens));  // [F, C, h', w]
  std::vector<at::Tensor> pixels;
  for (int64_t i = 0; i < frames; i += config_.micro_batch)
    pixels.push_back(spatial_.decode(x.narrow(0, i, std::min(config_.micro_batch, frames - i)), tokens));
  return at::concat(pixels);
}

// The frames of a clip are complete when the last of them are decoded.
int64_t VideoVaeDecoder::clip_bytes(int64_t height, int64_t width) const {
  const int64_t pixels = height * width * scale_factor() * scale_factor();
  const int64_t frame = spatial_.config.out_channels * static_cast<int64_t>(sizeof(float));
  return pixels * (config_.micro_batch * spatial_.bytes_per_pixel() + config_.clip * frame);
}

}  // namespace tessera::models
