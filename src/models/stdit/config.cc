#include "models/stdit/config.h"

#include <cmath>

namespace tessera::models {
namespace {

constexpr int64_t kMaxSize = 65536, kMaxDepth = 1024;

}  // namespace

STDiTConfig::STDiTConfig(const JsonConfig& json)
    : depth(json.count("depth", kMaxDepth, 28)),
      hidden_size(json.count("hidden_size", kMaxSize, 1152)),
      num_heads(json.count("num_heads", kMaxSize, 16)),
      in_channels(json.count("in_channels", kMaxSize, 4)),
      caption_channels(json.count("caption_channels", kMaxSize, 4096)),
      model_max_length(json.count("model_max_length", kMaxSize, 300)),
      stored_text_length(model_max_length),
      input_sq_size(json.count("input_sq_size", kMaxSize, 512)),
      mlp_width(0),
      pred_sigma(json.boolean("pred_sigma", true)),
      qk_norm(json.boolean("qk_norm", true)),
      qk_norm_legacy(json.boolean("qk_norm_legacy", false)) {
  for (const char* key : {"skip_y_embedder", "no_temporal_pos_emb"}) {
    if (json.boolean(key, false)) json.refuse(key, "models of this kind cannot run yet");
  }
  if (json.integers("patch_size", std::vector<int64_t>{1, 2, 2}) != std::vector<int64_t>{1, 2, 2})
    json.fail("patch_size", "[1, 2, 2]");
  if (hidden_size % num_heads != 0 || head_dim() % 2 != 0)
    json.fail("num_heads", fmt::format("such that hidden_size ({}) has heads of one even size", hidden_size));
  if (hidden_size % 4 != 0) json.fail("hidden_size", "a multiple of 4");
  const double wide = static_cast<double>(hidden_size) * json.number_within("mlp_ratio", 0, 64, 4);
  mlp_width = static_cast<int64_t>(wide);
  if (mlp_width < 1) json.fail("mlp_ratio", "such that the feed-forward has a width");
}

}  // namespace tessera::models
