#include "models/pixart.h"

#include <algorithm>
#include <cmath>

namespace tessera::models {
namespace {

constexpr int64_t kMaxSize = 65536;

void require(const JsonConfig& json, const std::string& key, const std::string& value,
             Null null = Null::kRefused) {
  if (json.string(key, value, null) != value) json.fail(key, fmt::format("\"{}\"", value));
}

}  // namespace

PixArtConfig::PixArtConfig(const JsonConfig& json)
    : num_attention_heads(json.count("num_attention_heads", kMaxSize, 16)),
      attention_head_dim(json.count("attention_head_dim", kMaxSize, 72)),
      num_layers(json.count("num_layers", kMaxSize, 28)),
      in_channels(json.count("in_channels", kMaxSize, 4)),
      out_channels(json.count("out_channels", kMaxSize, 8)),
      sample_size(json.count("sample_size", kMaxSize, 128)),
      patch_size(json.count("patch_size", kMaxSize, 2)),
      cross_attention_dim(json.count("cross_attention_dim", kMaxSize, 1152)),
      caption_channels(json.integer("caption_channels", 0, Null::kDefault)),
      interpolation_scale(json.number("interpolation_scale",
                                      static_cast<double>(std::max<int64_t>(sample_size / 64, 1)),
                                      Null::kDefault)),
      norm_eps(json.number("norm_eps", 1e-6)),
      attention_bias(json.boolean("attention_bias", true)),
      use_additional_conditions(json.has("use_additional_conditions")
                                    ? json.boolean("use_additional_conditions")
                                    : sample_size == 128) {
  require(json, "norm_type", "ada_norm_single");
  require(json, "activation_fn", "gelu-approximate");
  require(json, "attention_type", "default", Null::kDefault);
  if (json.boolean("norm_elementwise_affine", false)) json.fail("norm_elementwise_affine", "false");
  if (caption_channels < 0 || caption_channels > kMaxSize)
    json.fail("caption_channels", fmt::format("from 1 to {}, or null", kMaxSize));
  if (out_channels < in_channels)
    json.fail("out_channels", fmt::format("at least in_channels ({})", in_channels));
  if (width() % 4 != 0)
    json.fail("num_attention_heads", "such that heads times attention_head_dim divide by 4");
  if (use_additional_conditions && width() % 3 != 0) {
    json.fail("use_additional_conditions", "false, as the width does not divide by 3");
  }
  if (caption_channels > 0 && cross_attention_dim != width()) {
    json.fail("cross_attention_dim",
              fmt::format("{} ({} heads of {})", width(), num_attention_heads, attention_head_dim));
  }
  if (!(interpolation_scale > 0) || !std::isfinite(interpolation_scale)) {
    json.fail("interpolation_scale", "a positive number");
  }
  if (!(norm_eps >= 0 && norm_eps < 1)) json.fail("norm_eps", "from 0 to 1");
}

}  // namespace tessera::models
