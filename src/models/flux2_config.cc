#include <algorithm>
#include <numeric>

#include "models/flux2.h"

namespace tessera::models {
namespace {

constexpr int64_t kMostOfFlux2 = 65536;

int64_t flux2_blocks(const JsonConfig& json, const std::string& key, int64_t otherwise) {
  const int64_t blocks = json.integer(key, otherwise);
  if (blocks < 0 || blocks > kMostOfFlux2) json.fail(key, fmt::format("from 0 to {}", kMostOfFlux2));
  return blocks;
}

}  // namespace

Flux2Config::Flux2Config(const JsonConfig& json)
    : in_channels(json.count("in_channels", kMostOfFlux2, 128)),
      num_layers(flux2_blocks(json, "num_layers", 8)),
      num_single_layers(flux2_blocks(json, "num_single_layers", 48)),
      attention_head_dim(json.count("attention_head_dim", kMostOfFlux2, 128)),
      num_attention_heads(json.count("num_attention_heads", kMostOfFlux2, 48)),
      joint_attention_dim(json.count("joint_attention_dim", kMostOfFlux2, 15360)),
      timestep_guidance_channels(json.count("timestep_guidance_channels", kMostOfFlux2, 256)),
      mlp_ratio(json.number("mlp_ratio", 3.0)),
      rope_theta(json.number("rope_theta", 2000)),
      eps(json.number_within("eps", 0, 1, 1e-6)),
      axes_dims_rope(json.integers("axes_dims_rope", std::vector<int64_t>{32, 32, 32, 32})),
      guidance_embeds(json.boolean("guidance_embeds", true)) {
  if (json.string("_class_name", "Flux2Transformer2DModel") != "Flux2Transformer2DModel")
    json.fail("_class_name", "\"Flux2Transformer2DModel\"");
  if (json.integer("patch_size", 1) != 1)
    json.refuse("patch_size", "the model would predict more channels than its latents have");
  if (blocks() == 0) json.fail("num_single_layers", "at least 1 without other layers (num_layers)");
  if (json.has("out_channels") && json.integer("out_channels") != in_channels)
    json.fail("out_channels", fmt::format("{}, as in_channels, or null", in_channels));
  if (!(mlp_ratio <= static_cast<double>(kMostOfFlux2)) || feed_forward_width() < 1)
    json.fail("mlp_ratio", "such that the feed-forward has a width");
  const auto is_no_axis = [](int64_t features) { return features < 0 || features % 2 != 0; };
  if (axes_dims_rope.size() > 4 || std::any_of(axes_dims_rope.begin(), axes_dims_rope.end(), is_no_axis) ||
      std::accumulate(axes_dims_rope.begin(), axes_dims_rope.end(), int64_t{0}) != attention_head_dim) {
    json.fail("axes_dims_rope", fmt::format("one to four even numbers with the sum {} (attention_head_dim)",
                                            attention_head_dim));
  }
  if (!(rope_theta > 0)) json.fail("rope_theta", "a positive number");
}

int64_t Flux2Config::feed_forward_width() const {
  return static_cast<int64_t>(static_cast<double>(width()) * mlp_ratio);
}

}  // namespace tessera::models
