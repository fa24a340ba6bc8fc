#include "models/autoencoder_kl_flux2.h"

#include <ATen/Functions.h>

#include "core/device.h"
#include "core/error.h"
#include "core/log.h"
#include "models/loading.h"

namespace tessera::models {
namespace {

// The options of the decoder in the form of AutoencoderKLConfig.
JsonConfig decoder_options(const JsonConfig& json) {
  if (json.string("_class_name", "AutoencoderKLFlux2") != "AutoencoderKLFlux2")
    json.fail("_class_name", "\"AutoencoderKLFlux2\"");
  Json values = {{"down_block_types", std::vector<std::string>(4, "DownEncoderBlock2D")},
                 {"up_block_types", std::vector<std::string>(4, "UpDecoderBlock2D")},
                 {"block_out_channels", {128, 256, 512, 512}},
                 {"layers_per_block", 2},
                 {"latent_channels", 32},
                 {"sample_size", 1024}};
  values.update(json.values());
  // These are no options of this class.
  for (const char* key : {"scaling_factor", "shift_factor", "latents_mean", "latents_std", "force_upcast"}) {
    if (json.has(key) && json.values().at(key) != Json(false))
      log_warning("[{}] options without effect: {}", json.where(), key);
    values.erase(key);
  }
  values.update({{"_class_name", "AutoencoderKL"}, {"scaling_factor", 1}, {"force_upcast", false}});
  const std::vector<int64_t> widths = json.with(values).integers("block_out_channels");
  if (json.has("decoder_block_out_channels")) {
    if (json.integers("decoder_block_out_channels").size() != widths.size())
      json.fail("decoder_block_out_channels",
                fmt::format("{} numbers, as block_out_channels", widths.size()));
    values["block_out_channels"] = json.values().at("decoder_block_out_channels");
  }
  return json.with(values);
}

}  // namespace

AutoencoderKLFlux2Config::AutoencoderKLFlux2Config(const JsonConfig& json)
    : decoder(decoder_options(json)), batch_norm_eps(json.number_within("batch_norm_eps", 0, 1, 1e-4)) {
  json.number("batch_norm_momentum", 0.1);  // acts in training only
  if (json.integers("patch_size", std::vector<int64_t>{2, 2}) != std::vector<int64_t>{2, 2})
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
    json.fail("latent_channels",
              fmt::format("such that four times as many are {}, as in_channels of the denoiser", channels));
  }
  return {.pixels = 2 * config.decoder.scale_factor(), .channels = channels};
}

std::unique_ptr<Decoder> load_autoencoder_kl_flux2_decoder(const std::filesystem::path& model,
                                                           const LoadOptions& options,
                                                           LoadStatistics& statistics) {
  PartFiles files(model / "vae", weights::Library::kDiffusers, options);
  const AutoencoderKLFlux2Config config(files.config());
  const weights::Scope scope = files.scope();
  const bool is_fp16_on_cpu = scope.dtype() == at::kHalf && is_for_cpu(scope.device());
  auto decoder = std::make_unique<AutoencoderKLFlux2Decoder>(
      is_fp16_on_cpu ? scope.with_dtype(at::kFloat) : scope, config);
  files.finish(statistics, /*is_all=*/true, {"encoder.", "quant_conv.", "bn.num_batches_tracked"});
  return decoder;
}

at::Tensor unpacked_flux2_latents(const std::filesystem::path& model, const LoadOptions& options,
                                  const at::Tensor& z) {
  const SuppressLog suppress_log;  // loading the decoder gives the same warnings
  PartFiles files(model / "vae", weights::Library::kDiffusers, options);
  return Flux2BatchNorm(files.scope(), AutoencoderKLFlux2Config(files.config())).unpacked(z);
}

}  // namespace tessera::models
