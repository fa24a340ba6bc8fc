#include "models/autoencoder_kl.h"

#include <cmath>
#include <utility>

#include "core/error.h"
#include "models/loading.h"

namespace tessera::models {
namespace {

constexpr double kEps = 1e-6;
constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;

std::vector<DownEncoderBlock2D> read_down_blocks(const weights::Scope& scope,
                                                 const AutoencoderKLConfig& config) {
  const std::vector<int64_t>& channels = config.block_out_channels;
  std::vector<DownEncoderBlock2D> blocks;
  for (size_t i = 0; i < channels.size(); ++i) {
    blocks.emplace_back(scope / static_cast<int64_t>(i), channels[i == 0 ? 0 : i - 1], channels[i],
                        config.layers_per_block, config.norm_num_groups, i + 1 < channels.size());
  }
  return blocks;
}

std::vector<UpDecoderBlock2D> read_up_blocks(const weights::Scope& scope, const AutoencoderKLConfig& config) {
  const std::vector<int64_t> channels(config.block_out_channels.rbegin(), config.block_out_channels.rend());
  std::vector<UpDecoderBlock2D> blocks;
  for (size_t i = 0; i < channels.size(); ++i) {
    blocks.emplace_back(scope / static_cast<int64_t>(i), channels[i == 0 ? 0 : i - 1], channels[i],
                        config.layers_per_block + 1, config.norm_num_groups, i + 1 < channels.size());
  }
  return blocks;
}

std::optional<ops::Conv2d> read_quant_conv(const weights::Scope& scope, int64_t channels, bool present) {
  if (!present) return std::nullopt;
  return ops::Conv2d(scope, channels, channels, 1);
}

// Reads one half. Keys that start with one of `other_half` are none of its business.
template <typename Half>
std::unique_ptr<Half> load_half(const std::filesystem::path& folder, const LoadOptions& options,
                                LoadStatistics& statistics, const std::vector<std::string_view>& other_half) {
  const AutoencoderKLConfig config(JsonConfig::read(folder / "config.json"));
  PartFiles files(folder, options);
  const weights::Scope scope = files.scope();
  const bool half_fails = scope.device().is_cpu() || config.force_upcast;
  auto half = std::make_unique<Half>(
      scope.dtype() == at::kHalf && half_fails ? scope.with_dtype(at::kFloat) : scope, config);
  files.finish(statistics, /*is_all=*/true, other_half);
  return half;
}

// [1, C, 1, 1]
at::Tensor channel_vector(const std::vector<double>& values, const at::Tensor& like) {
  return at::tensor(values, like.options()).view({1, -1, 1, 1});
}

}  // namespace

AutoencoderKLEncoder::AutoencoderKLEncoder(const weights::Scope& scope, const AutoencoderKLConfig& numbers)
    : config(numbers),
      dtype(scope.dtype()),
      conv_in(scope / "encoder" / "conv_in", config.in_channels, config.block_out_channels.front(), 3, 1, 1),
      down_blocks(read_down_blocks(scope / "encoder" / "down_blocks", config)),
      mid_block(scope / "encoder" / "mid_block", config.block_out_channels.back(), config.norm_num_groups,
                config.mid_block_add_attention),
      conv_norm_out(scope / "encoder" / "conv_norm_out", config.block_out_channels.back(),
                    config.norm_num_groups, kEps),
      conv_out(scope / "encoder" / "conv_out", config.block_out_channels.back(), 2 * config.latent_channels,
               3, 1, 1),
      quant_conv(read_quant_conv(scope / "quant_conv", 2 * config.latent_channels, config.use_quant_conv)) {}

LatentDistribution AutoencoderKLEncoder::encode(const at::Tensor& image) const {
  const int64_t factor = config.scale_factor();
  TESSERA_CHECK(image.dim() == 4 && image.size(1) == config.in_channels, "image {}",
                fmt::join(image.sizes(), " x "));
  if (image.size(2) % factor != 0 || image.size(3) % factor != 0) {
    usage_error("vae", "a picture of {} x {} cannot be encoded: height and width must be multiples of {}",
                image.size(2), image.size(3), factor);
  }
  at::Tensor x = conv_in(image.to(dtype).contiguous(kChannelsLast));
  for (const DownEncoderBlock2D& block : down_blocks) x = block(std::move(x));
  x = mid_block(std::move(x));
  conv_norm_out.silu_(x);
  x = conv_out(x);
  if (quant_conv) x = (*quant_conv)(x);
  const std::vector<at::Tensor> moments = x.to(at::kFloat).contiguous().chunk(2, 1);
  return {moments[0], moments[1].clamp(-30.0, 20.0)};
}

AutoencoderKLDecoder::AutoencoderKLDecoder(const weights::Scope& scope, const AutoencoderKLConfig& numbers)
    : config(numbers),
      dtype(scope.dtype()),
      post_quant_conv(
          read_quant_conv(scope / "post_quant_conv", config.latent_channels, config.use_post_quant_conv)),
      conv_in(scope / "decoder" / "conv_in", config.latent_channels, config.block_out_channels.back(), 3, 1,
              1),
      mid_block(scope / "decoder" / "mid_block", config.block_out_channels.back(), config.norm_num_groups,
                config.mid_block_add_attention),
      up_blocks(read_up_blocks(scope / "decoder" / "up_blocks", config)),
      conv_norm_out(scope / "decoder" / "conv_norm_out", config.block_out_channels.front(),
                    config.norm_num_groups, kEps),
      conv_out(scope / "decoder" / "conv_out", config.block_out_channels.front(), config.out_channels, 3, 1,
               1) {}

at::Tensor AutoencoderKLDecoder::decode(const at::Tensor& z) const {
  TESSERA_CHECK(z.dim() == 4 && z.size(1) == config.latent_channels, "latents {}",
                fmt::join(z.sizes(), " x "));
  at::Tensor x = z.to(at::kFloat) / config.scaling_factor;
  if (!config.latents_mean.empty()) {
    x = x * channel_vector(config.latents_std, x) + channel_vector(config.latents_mean, x);
  }
  x = (x + config.shift_factor).to(dtype).contiguous(kChannelsLast);
  if (post_quant_conv) x = (*post_quant_conv)(x);
  x = mid_block(conv_in(x));
  for (const UpDecoderBlock2D& block : up_blocks) x = block(std::move(x));
  conv_norm_out.silu_(x);
  return conv_out(x).to(at::kFloat).contiguous();
}

std::unique_ptr<AutoencoderKLDecoder> load_autoencoder_kl_decoder(const std::filesystem::path& folder,
                                                                  const LoadOptions& options,
                                                                  LoadStatistics& statistics) {
  return load_half<AutoencoderKLDecoder>(folder, options, statistics, {"encoder.", "quant_conv."});
}

std::unique_ptr<AutoencoderKLEncoder> load_autoencoder_kl_encoder(const std::filesystem::path& folder,
                                                                  const LoadOptions& options,
                                                                  LoadStatistics& statistics) {
  return load_half<AutoencoderKLEncoder>(folder, options, statistics, {"decoder.", "post_quant_conv."});
}

}  // namespace tessera::models
