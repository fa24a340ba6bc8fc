#include "models/autoencoder_kl_flux2.h"

#include <ATen/Functions.h>

#include <functional>
#include <numeric>
#include <string_view>
#include <vector>

#include "core/device.h"
#include "core/error.h"
#include "core/log.h"
#include "models/loading.h"

namespace tessera::models {
namespace {

// Returns the options in the form of AutoencoderKLConfig, with the widths of the encoder.
JsonConfig encoder_options(const JsonConfig& json) {
  if (json.string("_class_name", "AutoencoderKLFlux2") != "AutoencoderKLFlux2")
    json.fail("_class_name", "\"AutoencoderKLFlux2\"");
  Json values = {{"down_block_types", std::vector<std::string>(4, "DownEncoderBlock2D")},
                 {"up_block_types", std::vector<std::string>(4, "UpDecoderBlock2D")},
                 {"block_out_channels", {128, 256, 512, 512}},
                 {"layers_per_block", 2},
                 {"latent_channels", 32},
                 {"sample_size", 1024}};
  values.update(json.values());
  // This class does not support these options.
  for (const char* key : {"scaling_factor", "shift_factor", "latents_mean", "latents_std", "force_upcast"}) {
    if (json.has(key) && json.values().at(key) != Json(false))
      log_warning("[{}] options without effect: {}", json.where(), key);
    values.erase(key);
  }
  values.update({{"_class_name", "AutoencoderKL"}, {"scaling_factor", 1}, {"force_upcast", false}});
  return json.with(values);
}

// Returns the same with the options of the decoder, which may differ.
JsonConfig decoder_options(const JsonConfig& json, const JsonConfig& encoder) {
  if (!json.has("decoder_block_out_channels")) return encoder;
  const std::vector<int64_t> widths = json.integers("decoder_block_out_channels");
  const size_t blocks = encoder.integers("block_out_channels").size();
  if (widths.size() != blocks)
    json.fail("decoder_block_out_channels", fmt::format("{} numbers, as block_out_channels", blocks));
  Json values = encoder.values();
  values["block_out_channels"] = widths;
  return encoder.with(values);
}

// Loads one half of vae/. Keys that start with a prefix in `other_half` belong to the other half.
template <typename Half>
std::unique_ptr<Half> load_flux2_half(const std::filesystem::path& model, const LoadOptions& options,
                                      LoadStatistics& statistics, std::vector<std::string_view> other_half) {
  PartFiles files(model / "vae", weights::Library::kDiffusers, options);
  const AutoencoderKLFlux2Config config(files.config());
  const weights::Scope scope = files.scope();
  const bool is_fp16_on_cpu = scope.dtype() == at::kHalf && is_for_cpu(scope.device());
  auto half = std::make_unique<Half>(is_fp16_on_cpu ? scope.with_dtype(at::kFloat) : scope, config);
  other_half.emplace_back("bn.num_batches_tracked");
  files.finish(statistics, /*is_all=*/true, other_half);
  return half;
}

}  // namespace

AutoencoderKLFlux2Config::AutoencoderKLFlux2Config(const JsonConfig& json)
    : AutoencoderKLFlux2Config(json, encoder_options(json)) {}

AutoencoderKLFlux2Config::AutoencoderKLFlux2Config(const JsonConfig& json, const JsonConfig& options)
    : encoder(options),
      decoder(decoder_options(json, options)),
      batch_norm_eps(json.number_within("batch_norm_eps", 0, 1, 1e-4)) {
  json.value("batch_norm_momentum");  // acts in training only
  const std::vector<int64_t> patch = json.integers("patch_size", std::vector<int64_t>{2, 2});
  if (std::accumulate(patch.begin(), patch.end(), 1.0, std::multiplies<>()) != 4)
    json.refuse("patch_size", "the pipelines pack latents by 2 x 2");
}

Flux2BatchNorm::Flux2BatchNorm(const weights::Scope& scope, const AutoencoderKLFlux2Config& config) {
  const weights::Scope norm = scope.with_dtype(at::kFloat) / "bn";
  const int64_t channels = config.channels();
  mean = norm.tensor("running_mean", {channels}).view({channels, 1, 1});
  deviation = at::sqrt(norm.tensor("running_var", {channels}) + config.batch_norm_eps).view({channels, 1, 1});
}

at::Tensor Flux2BatchNorm::unpacked(const at::Tensor& z) const {
  const at::Tensor blocks = z.to(at::kFloat) * deviation + mean;
  const int64_t count = z.size(0), channels = z.size(1) / 4, rows = z.size(2), columns = z.size(3);
  return blocks.reshape({count, channels, 2, 2, rows, columns})
      .permute({0, 1, 4, 2, 5, 3})
      .reshape({count, channels, 2 * rows, 2 * columns});
}

at::Tensor Flux2BatchNorm::packed(const at::Tensor& z) const {
  return (at::pixel_unshuffle(z.to(at::kFloat), 2) - mean) / deviation;
}

AutoencoderKLFlux2Encoder::AutoencoderKLFlux2Encoder(const weights::Scope& scope,
                                                     const AutoencoderKLFlux2Config& config)
    : norm(scope, config), network(scope, config.encoder) {}

at::Tensor AutoencoderKLFlux2Encoder::encode(const at::Tensor& frames) const {
  const int64_t pixels = 2 * network.config.scale_factor();
  TESSERA_CHECK(frames.dim() == 4 && frames.size(2) % pixels == 0 && frames.size(3) % pixels == 0,
                "pictures {}: sides must be multiples of {}", fmt::join(frames.sizes(), " x "), pixels);
  return norm.packed(network.encode(frames).mean);
}

AutoencoderKLFlux2Decoder::AutoencoderKLFlux2Decoder(const weights::Scope& scope,
                                                     const AutoencoderKLFlux2Config& config)
    : norm(scope, config), network(scope, config.decoder) {}

at::Tensor AutoencoderKLFlux2Decoder::decode_clip(const at::Tensor& z, int64_t /*frames*/, nn::Tokens& tokens,
                                                  ClipMemory* /*memory*/) const {
  TESSERA_CHECK(z.dim() == 4 && z.size(1) == norm.mean.size(0) && z.size(2) == tokens.held().rows &&
                    z.size(3) == tokens.grid().columns,
                "packed latents {} of a picture of {} x {}", fmt::join(z.sizes(), " x "), tokens.grid().rows,
                tokens.grid().columns);
  return network.decode_rows(norm.unpacked(z), nn::Rows(tokens).finer());
}

LatentScale read_autoencoder_kl_flux2_scale(const std::filesystem::path& model, int64_t channels) {
  const JsonConfig json = JsonConfig::read(model / "vae" / "config.json");
  const AutoencoderKLFlux2Config config(json);
  if (config.channels() != channels) {
    json.fail("latent_channels", fmt::format("a quarter of the {} in_channels of the denoiser", channels));
  }
  return {.pixels = 2 * config.decoder.scale_factor(), .channels = channels};
}

std::unique_ptr<Decoder> load_autoencoder_kl_flux2_decoder(const std::filesystem::path& model,
                                                           const LoadOptions& options,
                                                           LoadStatistics& statistics) {
  return load_flux2_half<AutoencoderKLFlux2Decoder>(model, options, statistics, {"encoder.", "quant_conv."});
}

std::unique_ptr<Encoder> load_autoencoder_kl_flux2_encoder(const std::filesystem::path& model,
                                                           const LoadOptions& options,
                                                           LoadStatistics& statistics) {
  return load_flux2_half<AutoencoderKLFlux2Encoder>(model, options, statistics,
                                                    {"decoder.", "post_quant_conv."});
}

at::Tensor unpacked_flux2_latents(const std::filesystem::path& model, const LoadOptions& options,
                                  const at::Tensor& z) {
  const SuppressLog suppress_log;  // loading the decoder repeats the warnings
  PartFiles files(model / "vae", weights::Library::kDiffusers, options);
  return Flux2BatchNorm(files.scope(), AutoencoderKLFlux2Config(files.config())).unpacked(z);
}

}  // namespace tessera::models
