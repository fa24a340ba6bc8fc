#include "models/autoencoder_kl.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace tessera::models {
namespace {

constexpr double kEps = 1e-6;
constexpr int64_t kMaxSize = 65536;
constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;

void require_types(const JsonConfig& config, const std::string& key, const std::string& type, size_t blocks) {
  if (!config.has(key)) {
    if (blocks != 1) config.fail(key, fmt::format("{} times \"{}\"", blocks, type));
    return;
  }
  const std::vector<std::string> types = config.strings(key);
  const bool known = std::all_of(types.begin(), types.end(), [&](const auto& name) { return name == type; });
  if (!known || types.size() != blocks) config.fail(key, fmt::format("{} times \"{}\"", blocks, type));
}

// Statistics of the latents: one number per channel.
std::vector<double> per_channel(const JsonConfig& config, const std::string& key, int64_t channels) {
  if (!config.has(key)) return {};
  std::vector<double> values = config.numbers(key);
  if (static_cast<int64_t>(values.size()) != channels) config.fail(key, fmt::format("{} numbers", channels));
  return values;
}

void warn_of_unknown_options(const JsonConfig& config) {
  static const std::set<std::string> known = {
      "in_channels",    "out_channels",        "down_block_types",
      "up_block_types", "block_out_channels",  "layers_per_block",
      "act_fn",         "latent_channels",     "norm_num_groups",
      "sample_size",    "scaling_factor",      "shift_factor",
      "latents_mean",   "latents_std",         "force_upcast",
      "use_quant_conv", "use_post_quant_conv", "mid_block_add_attention"};
  std::vector<std::string> unknown;
  for (const auto& [key, value] : config.values().items()) {
    if (!key.starts_with('_') && !known.contains(key)) unknown.push_back(key);
  }
  if (!unknown.empty())
    log_warning("[{}] options without effect: {}", config.where(), fmt::join(unknown, ", "));
}

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

at::ScalarType compute_dtype(const LoadOptions& options, const AutoencoderKLConfig& config) {
  const bool half_fails = options.device.is_cpu() || config.force_upcast;
  return options.dtype == at::kHalf && half_fails ? at::kFloat : options.dtype;
}

// Reads one half. Keys that start with one of `other_half` are none of its business.
template <typename Half>
std::unique_ptr<Half> load_half(const std::filesystem::path& folder, const LoadOptions& options,
                                LoadStatistics& statistics, const std::vector<std::string>& other_half) {
  const AutoencoderKLConfig config(JsonConfig::read(folder / "config.json"));
  weights::Checkpoint checkpoint(folder);
  const at::ScalarType dtype = compute_dtype(options, config);
  auto half = std::make_unique<Half>(weights::Scope(checkpoint, dtype, options.device), config);

  std::vector<std::string> unused;
  for (const std::string& key : checkpoint.unused()) {
    const bool others = std::any_of(other_half.begin(), other_half.end(),
                                    [&](const std::string& prefix) { return key.starts_with(prefix); });
    if (!others) unused.push_back(key);
  }
  if (!unused.empty()) {
    log_warning("[{}] weights that no layer reads: {}", folder.string(), fmt::join(unused, ", "));
  }
  statistics.bytes_read += checkpoint.bytes_used();
  statistics.bytes_held += checkpoint.bytes_held();
  return half;
}

// [1, C, 1, 1]
at::Tensor channel_vector(const std::vector<double>& values, const at::Tensor& like) {
  return at::tensor(values, like.options()).view({1, -1, 1, 1});
}

}  // namespace

AutoencoderKLConfig::AutoencoderKLConfig(const JsonConfig& config)
    : in_channels(config.count("in_channels", kMaxSize, 3)),
      out_channels(config.count("out_channels", kMaxSize, 3)),
      latent_channels(config.count("latent_channels", kMaxSize, 4)),
      block_out_channels(config.has("block_out_channels") ? config.integers("block_out_channels")
                                                          : std::vector<int64_t>{64}),
      layers_per_block(config.count("layers_per_block", kMaxSize, 1)),
      norm_num_groups(config.count("norm_num_groups", kMaxSize, 32)),
      scaling_factor(config.number("scaling_factor", 0.18215)),
      shift_factor(config.number("shift_factor", 0.0)),
      latents_mean(per_channel(config, "latents_mean", latent_channels)),
      latents_std(per_channel(config, "latents_std", latent_channels)),
      use_quant_conv(config.boolean("use_quant_conv", true)),
      use_post_quant_conv(config.boolean("use_post_quant_conv", true)),
      mid_block_add_attention(config.boolean("mid_block_add_attention", true)),
      force_upcast(config.boolean("force_upcast", true)) {
  if (config.string("_class_name", "AutoencoderKL") != "AutoencoderKL") {
    config.fail("_class_name", "\"AutoencoderKL\"");
  }
  if (config.string("act_fn", "silu") != "silu") config.fail("act_fn", "\"silu\"");
  if (block_out_channels.empty() || block_out_channels.size() > 16) {
    config.fail("block_out_channels", "1 to 16 numbers");
  }
  for (const int64_t channels : block_out_channels) {
    if (channels < 1 || channels % norm_num_groups != 0) {
      config.fail("block_out_channels", fmt::format("multiples of norm_num_groups ({})", norm_num_groups));
    }
  }
  if (!(std::abs(scaling_factor) > 0) || !std::isfinite(scaling_factor)) {
    config.fail("scaling_factor", "a number other than 0");
  }
  if (latents_mean.empty() != latents_std.empty())
    config.fail("latents_std", "present with latents_mean only");
  require_types(config, "down_block_types", "DownEncoderBlock2D", block_out_channels.size());
  require_types(config, "up_block_types", "UpDecoderBlock2D", block_out_channels.size());
  warn_of_unknown_options(config);
}

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
