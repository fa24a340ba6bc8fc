#include <algorithm>

#include "models/qwen3.h"

namespace tessera::models {
namespace {

constexpr int64_t kMaxQwenSize = int64_t{1} << 24, kMaxQwenLayers = 1024;
constexpr double kDefaultRopeTheta = 10000;  // transformers' default, if the file has none

// transformers 5 saves `rope_parameters`. Published files have `rope_theta`, and `rope_scaling` if the angles
// are scaled; the latter counts if it is there.
double read_rope_theta(const JsonConfig& json) {
  const double theta = json.number_within("rope_theta", 1e-3, 1e30, kDefaultRopeTheta);
  const bool is_scaled = json.has("rope_scaling") && !json.value("rope_scaling")->empty();
  const std::string key = is_scaled ? "rope_scaling" : "rope_parameters";
  if (!json.has(key)) return theta;
  const JsonConfig rope = json.object(key);
  for (const Json& value : rope.values()) {
    if (value.is_object()) json.refuse(key, "only one rotation for all blocks can run");
  }
  for (const char* type : {"rope_type", "type"}) {
    if (rope.string(type, "default") != "default") json.refuse(key, "only angles without scaling can run");
  }
  return rope.number_within("rope_theta", 1e-3, 1e30, theta);
}

// A window acts on the blocks from max_window_layers on, or on those that layer_types names.
void refuse_windows(const JsonConfig& json, int64_t num_layers) {
  const Json* size = json.value("sliding_window");  // null means none; if the key is absent, there is one
  const bool has_window = json.boolean("use_sliding_window", false) && (size == nullptr || !size->is_null());
  const int64_t first = json.integer("max_window_layers", 28);
  if (json.has("layer_types")) {
    const std::vector<std::string> types = json.strings("layer_types");
    const auto is_full = [](const std::string& type) { return type == "full_attention"; };
    if (!std::all_of(types.begin(), types.end(), is_full))
      json.refuse("layer_types", "only blocks of full_attention can run");
  } else if (has_window && first < num_layers) {
    json.refuse("use_sliding_window", "only attention without a window can run");
  }
}

// Mistral 3 also reads pictures, and the keys of its language model are in an object of their own.
JsonConfig trunk_config(const JsonConfig& json, Trunk trunk) {
  const std::string type = trunk == Trunk::kQwen3 ? "qwen3" : "mistral3";
  if (json.string("model_type", type) != type) json.fail("model_type", fmt::format("\"{}\"", type));
  if (trunk == Trunk::kQwen3) return json;
  if (!json.has("text_config")) json.fail("text_config", "an object");
  for (const char* key : {"image_token_index", "multimodal_projector_bias", "projector_hidden_act",
                          "spatial_merge_size", "vision_config", "vision_feature_layer"})
    json.value(key);  // of pictures
  JsonConfig text = json.object("text_config");
  if (text.string("model_type", "mistral") != "mistral") text.fail("model_type", "\"mistral\"");
  return text;
}

int64_t read_head_dim(const JsonConfig& json, Trunk trunk, int64_t hidden_size, int64_t heads) {
  if (trunk == Trunk::kQwen3) return json.count("head_dim", kMaxQwenSize, 128);
  const int64_t size = json.has("head_dim") ? json.count("head_dim", kMaxQwenSize) : hidden_size / heads;
  if (size < 1) json.fail("hidden_size", fmt::format("at least num_attention_heads ({})", heads));
  return size;
}

}  // namespace

// Defaults of transformers' Qwen3Config and MistralConfig.
struct Qwen3Config::Defaults {
  int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
      num_key_value_heads;
};

Qwen3Config::Qwen3Config(const JsonConfig& json, Trunk trunk)
    : Qwen3Config(trunk_config(json, trunk), trunk,
                  trunk == Trunk::kQwen3 ? Defaults{151936, 4096, 22016, 32, 32, 32}
                                         : Defaults{32000, 4096, 14336, 32, 32, 8}) {}

Qwen3Config::Qwen3Config(const JsonConfig& json, Trunk of, const Defaults& defaults)
    : trunk(of),
      vocab_size(json.count("vocab_size", kMaxQwenSize, defaults.vocab_size)),
      hidden_size(json.count("hidden_size", kMaxQwenSize, defaults.hidden_size)),
      intermediate_size(json.count("intermediate_size", kMaxQwenSize, defaults.intermediate_size)),
      num_hidden_layers(json.count("num_hidden_layers", kMaxQwenLayers, defaults.num_hidden_layers)),
      num_attention_heads(json.count("num_attention_heads", kMaxQwenSize, defaults.num_attention_heads)),
      // A file with null here has as many key heads as query heads.
      num_key_value_heads(
          json.value("num_key_value_heads") != nullptr && !json.has("num_key_value_heads")
              ? num_attention_heads
              : json.count("num_key_value_heads", kMaxQwenSize, defaults.num_key_value_heads)),
      head_dim(read_head_dim(json, trunk, hidden_size, num_attention_heads)),
      rms_norm_eps(json.number_within("rms_norm_eps", 0, 1, 1e-6)),
      rope_theta(read_rope_theta(json)),
      where(json.where()) {
  if (num_attention_heads % num_key_value_heads != 0) {
    json.fail("num_key_value_heads",
              fmt::format("a divisor of num_attention_heads ({})", num_attention_heads));
  }
  if (head_dim % 2 != 0) json.fail("head_dim", "even");
  const std::string activation = json.string("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") json.fail("hidden_act", "\"silu\"");
  json.value("max_position_embeddings");  // without scaling, this has no effect
  if (trunk == Trunk::kMistral3) {
    // All blocks have the window, unless it is null.
    if (json.has("sliding_window") || json.value("sliding_window") == nullptr)
      sliding_window = json.count("sliding_window", kMaxQwenSize, 4096);
    return;
  }
  if (json.boolean("attention_bias", false))
    json.refuse("attention_bias", "only projections without a bias can run");
  refuse_windows(json, num_hidden_layers);
}

}  // namespace tessera::models
