#include "models/t5.h"

namespace tessera::models {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 24;

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
  const std::string projection = json.string("feed_forward_proj", "relu");
  if (projection != "relu" && projection != "gated-gelu") {
    json.fail("feed_forward_proj", "\"relu\" or \"gated-gelu\"");
  }
  gated = projection == "gated-gelu";
  activation = gated ? ops::Activation::kGeluTanh : ops::Activation::kRelu;
  if (!(layer_norm_epsilon >= 0 && layer_norm_epsilon < 1)) json.fail("layer_norm_epsilon", "from 0 to 1");
  const int64_t single_distances = relative_attention_num_buckets / 4;
  if (single_distances < 1 || single_distances >= relative_attention_max_distance) {
    json.fail("relative_attention_num_buckets",
              "at least 4, and below four times relative_attention_max_distance");
  }
}

}  // namespace tessera::models
