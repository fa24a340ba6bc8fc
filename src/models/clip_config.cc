#include <algorithm>

#include "models/clip.h"

namespace tessera::models {
namespace {

constexpr int64_t kMaxSize = 1 << 20, kMaxLayers = 256;

}  // namespace

CLIPTextConfig::CLIPTextConfig(const JsonConfig& json)
    : vocab_size(json.count("vocab_size", kMaxSize, 49408)),
      hidden_size(json.count("hidden_size", kMaxSize, 512)),
      intermediate_size(json.count("intermediate_size", kMaxSize, 2048)),
      num_hidden_layers(json.count("num_hidden_layers", kMaxLayers, 12)),
      num_attention_heads(json.count("num_attention_heads", kMaxSize, 8)),
      max_position_embeddings(json.count("max_position_embeddings", kMaxSize, 77)),
      projection_dim(json.has("projection_dim") ? json.count("projection_dim", kMaxSize) : 512),
      eos_token_id(json.integer("eos_token_id", 49407)),
      layer_norm_eps(json.number_within("layer_norm_eps", 0, 1, 1e-5)),
      quick_gelu(json.string("hidden_act", "quick_gelu") == "quick_gelu"),
      has_projection(false) {
  if (!quick_gelu && json.string("hidden_act") != "gelu")
    json.fail("hidden_act", "\"quick_gelu\" or \"gelu\"");
  if (hidden_size % num_attention_heads != 0)
    json.fail("num_attention_heads", fmt::format("a divisor of hidden_size ({})", hidden_size));
  if (json.has("architectures")) {
    const std::vector<std::string> names = json.strings("architectures");
    has_projection = std::find(names.begin(), names.end(), "CLIPTextModelWithProjection") != names.end();
  }
}

}  // namespace tessera::models
