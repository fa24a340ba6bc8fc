#include <map>

#include "models/t5.h"

namespace tessera::models {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 24;

// The keys have transformers' names.
ops::Activation find_activation(const JsonConfig& json, const std::string& key, const std::string& name) {
  static const std::map<std::string, ops::Activation> known = {{"relu", ops::Activation::kRelu},
                                                               {"gelu", ops::Activation::kGelu},
                                                               {"gelu_new", ops::Activation::kGeluTanh},
                                                               {"silu", ops::Activation::kSilu},
                                                               {"swish", ops::Activation::kSilu}};
  const auto found = known.find(name);
  if (found == known.end()) json.fail(key, "\"relu\", \"gelu\", \"gelu_new\" or \"silu\"");
  return found->second;
}

}  // namespace

T5Config::T5Config(const JsonConfig& json)
    : vocab_size(json.count("vocab_size", kMaxSize, 32128)),
      d_model(json.count("d_model", kMaxSize, 512)),
      d_kv(json.count("d_kv", kMaxSize, 64)),
      d_ff(json.count("d_ff", kMaxSize, 2048)),
      num_heads(json.count("num_heads", kMaxSize, 8)),
      num_layers(json.count("num_layers", kMaxSize, 6)),
      relative_attention_num_buckets(json.integer("relative_attention_num_buckets", 32)),
      relative_attention_max_distance(json.count("relative_attention_max_distance", kMaxSize, 128)),
      layer_norm_epsilon(json.number("layer_norm_epsilon", 1e-6)) {
  if (json.string("model_type", "t5") != "t5") json.fail("model_type", "\"t5\"");
  if (json.boolean("is_decoder", false)) json.refuse("is_decoder", "a text encoder of this kind cannot run");
  // feed_forward_proj gives both; if a file also has the two keys that transformers derives from it, those
  // count.
  const std::string projection = json.string("feed_forward_proj", "relu");
  const bool names_gate = projection.starts_with("gated-");
  const std::string name = names_gate ? projection.substr(projection.find('-') + 1) : projection;
  gated = json.boolean("is_gated_act", names_gate);
  if (json.value("dense_act_fn")) {
    activation = find_activation(json, "dense_act_fn", json.string("dense_act_fn"));
  } else {
    activation = find_activation(json, "feed_forward_proj", projection == "gated-gelu" ? "gelu_new" : name);
  }
  if (!(layer_norm_epsilon >= 0 && layer_norm_epsilon < 1)) json.fail("layer_norm_epsilon", "from 0 to 1");
  const int64_t single_distances = relative_attention_num_buckets / 4;
  if (single_distances < 1 || single_distances >= relative_attention_max_distance) {
    json.fail("relative_attention_num_buckets",
              "at least 4, and below four times relative_attention_max_distance");
  }
}

}  // namespace tessera::models
