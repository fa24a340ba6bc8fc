#include <ATen/Functions.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "models/qwen3.h"
#include "ops/activations.h"

namespace tessera::models {
namespace {

constexpr int64_t kMaxQwenSize = int64_t{1} << 24, kMaxQwenLayers = 1024;

using ops::Activation;

// Names of transformers, several of which mean the same.
Qwen3Activation read_hidden_act(const JsonConfig& json) {
  static const std::map<std::string, Qwen3Activation> known = {
      {"silu", {Activation::kSilu}},
      {"swish", {Activation::kSilu}},
      {"gelu", {Activation::kGelu}},
      {"gelu_python", {Activation::kGelu}},
      {"gelu_10", {Activation::kGelu, [](const at::Tensor& x) { return x.clamp(-10, 10); }}},
      {"gelu_new", {Activation::kGeluTanh}},
      {"gelu_fast", {Activation::kGeluTanh}},
      {"gelu_accurate", {Activation::kGeluTanh}},
      {"gelu_pytorch_tanh", {Activation::kGeluTanh}},
      {"gelu_python_tanh", {Activation::kGeluTanh}},
      {"quick_gelu", {Activation::kNone, ops::quick_gelu}},
      {"relu", {Activation::kRelu}},
      {"relu2", {Activation::kRelu, [](const at::Tensor& x) { return x.square(); }}},
      {"relu6", {Activation::kNone, [](const at::Tensor& x) { return x.clamp(0, 6); }}},
      {"hardswish", {Activation::kNone, [](const at::Tensor& x) { return x * (x + 3).clamp(0, 6) / 6; }}},
      {"laplace",
       {Activation::kNone,
        [](const at::Tensor& x) {
          return 0.5 * (1 + at::erf((x - 0.707107) / (0.282095 * std::sqrt(2.0))));
        }}},
      {"sqrtsoftplus", {Activation::kNone, [](const at::Tensor& x) { return at::softplus(x).sqrt(); }}},
      {"leaky_relu", {Activation::kNone, [](const at::Tensor& x) { return at::leaky_relu(x); }}},
      {"mish", {Activation::kNone, [](const at::Tensor& x) { return at::mish(x); }}},
      {"sigmoid", {Activation::kNone, [](const at::Tensor& x) { return at::sigmoid(x); }}},
      {"tanh", {Activation::kNone, [](const at::Tensor& x) { return at::tanh(x); }}},
      {"linear", {Activation::kNone}},
  };
  const auto found = known.find(json.string("hidden_act", "silu"));
  if (found != known.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [name, activation] : known) names.push_back(name);
  json.fail("hidden_act", fmt::format("one of {}", fmt::join(names, ", ")));
}

// A window acts on the blocks that layer_types names, or on those from max_window_layers on.
std::vector<std::optional<int64_t>> read_windows(const JsonConfig& json, int64_t num_layers) {
  std::optional<int64_t> window;  // null means none; if the key is absent, there is one
  if (json.boolean("use_sliding_window", false) &&
      (json.has("sliding_window") || json.value("sliding_window") == nullptr))
    window = json.count("sliding_window", kMaxQwenSize, 4096);
  json.value("sliding_window");
  const int64_t first = json.integer("max_window_layers", 28);
  std::vector<std::optional<int64_t>> windows(static_cast<size_t>(num_layers));
  if (!json.has("layer_types")) {
    for (int64_t i = std::max<int64_t>(first, 0); i < num_layers; ++i)
      windows[static_cast<size_t>(i)] = window;
    return windows;
  }
  const std::vector<std::string> types = json.strings("layer_types");
  if (types.size() != windows.size())
    json.fail("layer_types", fmt::format("a list of num_hidden_layers ({}) texts", num_layers));
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] == "full_attention") continue;
    if (types[i] != "sliding_attention")
      json.refuse("layer_types", "only blocks of full_attention and of sliding_attention can run");
    if (!window) json.refuse("layer_types", "blocks of sliding_attention need a sliding_window that is used");
    windows[i] = window;
  }
  return windows;
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
      rope(json, head_dim),
      activation(read_hidden_act(json)),
      where(json.where()) {
  if (num_attention_heads % num_key_value_heads != 0) {
    json.fail("num_key_value_heads",
              fmt::format("a divisor of num_attention_heads ({})", num_attention_heads));
  }
  if (head_dim % 2 != 0) json.fail("head_dim", "even");
  json.value("max_position_embeddings");  // without scaling, this has no effect
  if (trunk == Trunk::kMistral3) {
    // All blocks have the window, unless it is null.
    std::optional<int64_t> window;
    if (json.has("sliding_window") || json.value("sliding_window") == nullptr)
      window = json.count("sliding_window", kMaxQwenSize, 4096);
    windows.resize(static_cast<size_t>(num_hidden_layers), window);
    return;
  }
  attention_bias = json.boolean("attention_bias", false);
  windows = read_windows(json, num_hidden_layers);
}

}  // namespace tessera::models
