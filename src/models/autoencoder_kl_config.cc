#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>

#include "core/log.h"
#include "models/autoencoder_kl.h"

namespace tessera::models {
namespace {

constexpr int64_t kMaxSize = 65536;

void require_types(const JsonConfig& config, const std::string& key, const std::string& type, size_t blocks) {
  const std::vector<std::string> types = config.strings(key, std::vector{type});
  const bool known = std::all_of(types.begin(), types.end(), [&](const auto& name) { return name == type; });
  if (!known || types.size() != blocks) config.fail(key, fmt::format("{} times \"{}\"", blocks, type));
}

// Reads statistics of the latents, one number per channel.
std::vector<double> per_channel(const JsonConfig& config, const std::string& key, int64_t channels) {
  if (!config.has(key)) return {};
  std::vector<double> values = config.numbers(key);
  if (static_cast<int64_t>(values.size()) != channels) config.fail(key, fmt::format("{} numbers", channels));
  return values;
}

// Reads one number, or height and width; diffusers takes the first as the side of its tiles.
int64_t read_sample_size(const JsonConfig& config) {
  const Json* const given = config.value("sample_size");
  if (!given || !given->is_array()) return config.count("sample_size", kMaxSize, 32);
  const std::vector<int64_t> sizes = config.integers("sample_size");
  if (sizes.size() != 2 || sizes[0] < 1 || sizes[0] > kMaxSize)
    config.fail("sample_size", "a number, or two");
  return sizes[0];
}

// Within residual blocks. The norm before the last convolution has SiLU whatever this is.
ResnetBlock2D::Activation read_act_fn(const JsonConfig& config) {
  const std::string name = config.string("act_fn", "silu");
  if (name == "silu" || name == "swish") return nullptr;
  if (name == "gelu") return [](const at::Tensor& x) { return ops::activate(x, ops::Activation::kGelu); };
  if (name == "relu") return [](const at::Tensor& x) { return ops::activate(x, ops::Activation::kRelu); };
  if (name == "mish") return [](const at::Tensor& x) { return at::mish(x); };
  config.fail("act_fn", "\"silu\", \"swish\" (the same), \"gelu\", \"relu\" or \"mish\"");
}

}  // namespace

AutoencoderKLConfig::AutoencoderKLConfig(const JsonConfig& config)
    : in_channels(config.count("in_channels", kMaxSize, 3)),
      out_channels(config.count("out_channels", kMaxSize, 3)),
      latent_channels(config.count("latent_channels", kMaxSize, 4)),
      block_out_channels(config.integers("block_out_channels", std::vector<int64_t>{64})),
      layers_per_block(config.count("layers_per_block", kMaxSize, 1)),
      norm_num_groups(config.count("norm_num_groups", kMaxSize, 32)),
      sample_size(read_sample_size(config)),
      scaling_factor(config.number("scaling_factor", 0.18215)),
      shift_factor(config.number("shift_factor", 0.0, Null::kDefault)),
      latents_mean(per_channel(config, "latents_mean", latent_channels)),
      latents_std(per_channel(config, "latents_std", latent_channels)),
      use_quant_conv(config.boolean("use_quant_conv", true)),
      use_post_quant_conv(config.boolean("use_post_quant_conv", true)),
      mid_block_add_attention(config.boolean("mid_block_add_attention", true)),
      force_upcast(config.boolean("force_upcast", true)),
      activation(read_act_fn(config)) {
  if (config.string("_class_name", "AutoencoderKL") != "AutoencoderKL") {
    config.fail("_class_name", "\"AutoencoderKL\"");
  }
  // diffusers also writes pictures that do not have three colours: grey levels, or colours with a fourth
  // channel.
  if (out_channels != 3) config.refuse("out_channels", "only images of three colours can be written yet");
  if (block_out_channels.empty() || block_out_channels.size() > 16) {
    config.fail("block_out_channels", "1 to 16 numbers");
  }
  for (const int64_t channels : block_out_channels) {
    if (channels < 1 || channels > kMaxSize || channels % norm_num_groups != 0) {
      config.fail("block_out_channels",
                  fmt::format("multiples of norm_num_groups ({}), at most {}", norm_num_groups, kMaxSize));
    }
  }
  if (!(std::abs(scaling_factor) > 0) || !std::isfinite(scaling_factor)) {
    config.fail("scaling_factor", "a number other than 0");
  }
  if (sample_size < scale_factor())
    config.fail("sample_size", fmt::format("at least the scale factor ({})", scale_factor()));
  if (latents_mean.empty() != latents_std.empty()) {  // diffusers takes both or none
    log_warning("[{}] options without effect: {}", config.where(),
                latents_mean.empty() ? "latents_std (latents_mean is missing)"
                                     : "latents_mean (latents_std is missing)");
    latents_mean.clear();
    latents_std.clear();
  }
  require_types(config, "down_block_types", "DownEncoderBlock2D", block_out_channels.size());
  require_types(config, "up_block_types", "UpDecoderBlock2D", block_out_channels.size());
}

// Reads only what is needed, because a file that cannot be read whole is refused when its weights are read.
LatentScale read_autoencoder_kl_scale(const std::filesystem::path& model, int64_t channels) {
  // Every block of the decoder except the last doubles the sides.
  const JsonConfig decoder = JsonConfig::read(model / "vae" / "config.json");
  const size_t blocks = decoder.integers("block_out_channels").size();
  if (blocks < 1 || blocks > 8) decoder.fail("block_out_channels", "a list of 1 to 8 integers");
  if (decoder.integer("latent_channels", 4) != channels)
    decoder.fail("latent_channels", fmt::format("{}, as in_channels of the denoiser", channels));
  return {.pixels = int64_t{1} << (blocks - 1), .channels = channels};
}

}  // namespace tessera::models
