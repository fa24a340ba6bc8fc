#include "models/autoencoder_kl.h"

#include <cmath>
#include <utility>

#include "core/device.h"
#include "core/error.h"
#include "models/loading.h"

namespace tessera::models {
namespace {

constexpr double kEps = 1e-6;
constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;

ResnetBlock2D::Options resnet_options(const AutoencoderKLConfig& config) {
  return {.norm_groups = config.norm_num_groups, .eps = kEps, .activation = config.activation};
}

std::vector<DownEncoderBlock2D> read_down_blocks(const weights::Scope& scope,
                                                 const AutoencoderKLConfig& config) {
  const std::vector<int64_t>& channels = config.block_out_channels;
  std::vector<DownEncoderBlock2D> blocks;
  for (size_t i = 0; i < channels.size(); ++i) {
    blocks.emplace_back(scope / static_cast<int64_t>(i), channels[i == 0 ? 0 : i - 1], channels[i],
                        config.layers_per_block, resnet_options(config), i + 1 < channels.size());
  }
  return blocks;
}

std::vector<UpDecoderBlock2D> read_up_blocks(const weights::Scope& scope, const AutoencoderKLConfig& config) {
  const std::vector<int64_t> channels(config.block_out_channels.rbegin(), config.block_out_channels.rend());
  std::vector<UpDecoderBlock2D> blocks;
  for (size_t i = 0; i < channels.size(); ++i) {
    blocks.emplace_back(scope / static_cast<int64_t>(i), channels[i == 0 ? 0 : i - 1], channels[i],
                        config.layers_per_block + 1, resnet_options(config), i + 1 < channels.size());
  }
  return blocks;
}

std::optional<nn::Conv2d> read_quant_conv(const weights::Scope& scope, int64_t channels, bool present) {
  if (!present) return std::nullopt;
  return nn::Conv2d(scope, channels, channels, 1);
}

// Reads one half. Keys that start with a prefix in `other_half` belong to the other half and are not reported
// as unread.
template <typename Half>
std::unique_ptr<Half> load_half(const std::filesystem::path& folder, const LoadOptions& options,
                                LoadStatistics& statistics, const std::vector<std::string_view>& other_half) {
  PartFiles files(folder, weights::Library::kDiffusers, options);
  const AutoencoderKLConfig config(files.config());
  const weights::Scope scope = files.scope();
  const bool half_fails = is_for_cpu(scope.device()) || config.force_upcast;
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
      mid_block(scope / "encoder" / "mid_block", config.block_out_channels.back(), resnet_options(config),
                config.mid_block_add_attention),
      conv_norm_out(scope / "encoder" / "conv_norm_out", config.block_out_channels.back(),
                    config.norm_num_groups, kEps, ops::Activation::kSilu),
      conv_out(scope / "encoder" / "conv_out", config.block_out_channels.back(), 2 * config.latent_channels,
               3, 1, 1),
      quant_conv(read_quant_conv(scope / "quant_conv", 2 * config.latent_channels, config.use_quant_conv)) {}

LatentDistribution AutoencoderKLEncoder::encode(const at::Tensor& image) const {
  nn::Tokens whole(parallel::Grid{.rows = image.size(2), .columns = image.size(3)});
  return encode(image, whole);
}

LatentDistribution AutoencoderKLEncoder::encode(const at::Tensor& image, nn::Tokens& tokens) const {
  const int64_t factor = config.scale_factor();
  const parallel::Grid& grid = tokens.grid();
  TESSERA_CHECK(image.dim() == 4 && image.size(1) == config.in_channels &&
                    image.size(2) == tokens.held().rows && image.size(3) == grid.columns,
                "image {} of a picture of {} x {}", fmt::join(image.sizes(), " x "), grid.rows, grid.columns);
  nn::Rows rows(tokens);
  if (!rows.is_whole() && (grid.rows % factor != 0 || grid.columns % factor != 0)) {
    usage_error("vae",
                "an image of {} x {} cannot be encoded in parts: height and width must be multiples of {}",
                grid.rows, grid.columns, factor);
  }
  at::Tensor x = conv_in(image.to(dtype).contiguous(kChannelsLast), rows);
  for (const DownEncoderBlock2D& block : down_blocks) x = block(std::move(x), rows);
  x = mid_block(std::move(x), rows);
  x = conv_out(conv_norm_out, std::move(x), rows);
  if (quant_conv) x = (*quant_conv)(x, rows);
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
      mid_block(scope / "decoder" / "mid_block", config.block_out_channels.back(), resnet_options(config),
                config.mid_block_add_attention),
      up_blocks(read_up_blocks(scope / "decoder" / "up_blocks", config)),
      conv_norm_out(scope / "decoder" / "conv_norm_out", config.block_out_channels.front(),
                    config.norm_num_groups, kEps, ops::Activation::kSilu),
      conv_out(scope / "decoder" / "conv_out", config.block_out_channels.front(), config.out_channels, 3, 1,
               1) {}

at::Tensor AutoencoderKLDecoder::decode_clip(const at::Tensor& z, int64_t /*frames*/, nn::Tokens& tokens,
                                             ClipMemory* /*memory*/) const {
  TESSERA_CHECK(z.dim() == 4 && z.size(1) == config.latent_channels && z.size(2) == tokens.held().rows &&
                    z.size(3) == tokens.grid().columns,
                "latents {} of a picture of {} x {}", fmt::join(z.sizes(), " x "), tokens.grid().rows,
                tokens.grid().columns);
  at::Tensor x = z.to(at::kFloat) / config.scaling_factor;
  if (!config.latents_mean.empty()) {
    x = x * channel_vector(config.latents_std, x) + channel_vector(config.latents_mean, x);
  }
  return decode_rows(x + config.shift_factor, nn::Rows(tokens));
}

at::Tensor AutoencoderKLDecoder::decode_rows(const at::Tensor& z, nn::Rows rows) const {
  at::Tensor x = z.to(dtype).contiguous(kChannelsLast);
  if (post_quant_conv) x = (*post_quant_conv)(x, rows);
  x = mid_block(conv_in(x, rows), rows);
  for (const UpDecoderBlock2D& block : up_blocks) x = block(std::move(x), rows);
  return conv_out(conv_norm_out, std::move(x), rows).to(at::kFloat).contiguous();
}

// The first block at the largest scale holds its input (as wide as the previous scale), the input's shortcut,
// and the tensor that the shortcut is added to.
int64_t AutoencoderKLDecoder::bytes_per_pixel() const {
  const std::vector<int64_t>& channels = config.block_out_channels;
  const int64_t input = channels.size() > 1 ? channels[1] : channels[0];
  return (input + 2 * channels[0]) * static_cast<int64_t>(c10::elementSize(dtype));
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
