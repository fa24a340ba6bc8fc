#include <algorithm>

#include "models/qwen3.h"

namespace tessera::models {
namespace {

constexpr int64_t kMaxQwenSize = int64_t{1} << 24, kMaxQwenLayers = 1024;
constexpr double kDefaultRopeTheta = 10000;  // of transformers, where a file has none

// transformers 5 saves `rope_parameters`; published files have `rope_theta`, and `rope_scaling` where the
// angles are scaled, which counts if it is there.
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
  const Json* size = json.value("sliding_window");  // null means none, and without the key there is one
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

}  // namespace

Qwen3Config::Qwen3Config(const JsonConfig& json)
    : vocab_size(json.count("vocab_size", kMaxQwenSize, 151936)),
      hidden_size(json.count("hidden_size", kMaxQwenSize, 4096)),
      intermediate_size(json.count("intermediate_size", kMaxQwenSize, 22016)),
      num_hidden_layers(json.count("num_hidden_layers", kMaxQwenLayers, 32)),
      num_attention_heads(json.count("num_attention_heads", kMaxQwenSize, 32)),
      // A file with null here has as many heads of keys as of queries.
      num_key_value_heads(json.value("num_key_value_heads") != nullptr && !json.has("num_key_value_heads")
                              ? num_attention_heads
                              : json.count("num_key_value_heads", kMaxQwenSize, 32)),
      head_dim(json.count("head_dim", kMaxQwenSize, 128)),
      rms_norm_eps(json.number_within("rms_norm_eps", 0, 1, 1e-6)),
      rope_theta(read_rope_theta(json)),
      where(json.where()) {
  if (json.string("model_type", "qwen3") != "qwen3") json.fail("model_type", "\"qwen3\"");
  if (num_attention_heads % num_key_value_heads != 0) {
    json.fail("num_key_value_heads",
              fmt::format("a divisor of num_attention_heads ({})", num_attention_heads));
  }
  if (head_dim % 2 != 0) json.fail("head_dim", "even");
  const std::string activation = json.string("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") json.fail("hidden_act", "\"silu\"");
  if (json.boolean("attention_bias", false))
    json.refuse("attention_bias", "only projections without a bias can run");
  refuse_windows(json, num_hidden_layers);
  json.value("max_position_embeddings");  // this does not change anything without scaling
}

}  // namespace tessera::models
