#include <algorithm>
#include <cmath>

#include "models/unet_2d_condition.h"

namespace tessera::models {
namespace {

constexpr int64_t kMaxSize = 65536, kMaxLevels = 16, kMaxLayers = 256, kMaxLayersOfTransformer = 16;

// diffusers stores the number of heads under this key.
const char* const kHeads = "attention_head_dim";

// Reads one number per level; a single number applies to all.
std::vector<int64_t> per_level(const JsonConfig& json, const std::string& key, size_t levels, int64_t most,
                               const std::vector<int64_t>& fallback) {
  std::vector<int64_t> values = json.integers(key, fallback);
  if (values.size() == 1) values.resize(levels, values.front());
  const bool valid =
      std::all_of(values.begin(), values.end(), [&](int64_t v) { return v >= 1 && v <= most; });
  if (values.size() != levels || !valid)
    json.fail(key, fmt::format("a number from 1 to {}, or one for each of {} levels", most, levels));
  return values;
}

// Reads whether each block has attention: its type is `plain` or `attending`.
std::vector<bool> attending(const JsonConfig& json, const std::string& key, const std::string& plain,
                            const std::string& with_attention, size_t levels,
                            const std::vector<std::string>& fallback) {
  std::vector<bool> result;
  for (const std::string& type : json.strings(key, fallback)) {
    if (type != plain && type != with_attention)
      json.fail(key, fmt::format("a list of \"{}\" and \"{}\"", plain, with_attention));
    result.push_back(type == with_attention);
  }
  if (result.size() != levels) json.fail(key, fmt::format("{} types", levels));
  return result;
}

void require_whole_heads(const JsonConfig& json, const UNet2DConfig::Level& level) {
  if (level.channels % level.heads != 0)
    json.fail(kHeads, fmt::format("a divisor of block_out_channels ({})", level.channels));
}

// These options would change the network and are refused.
void require_usual(const JsonConfig& json) {
  const auto text = [&](const char* key, const char* value, Null null = Null::kRefused) {
    if (json.string(key, value, null) != value) json.fail(key, fmt::format("\"{}\"", value));
  };
  const auto no = [&](const char* key) {
    if (json.boolean(key, false)) json.fail(key, "false");
  };
  const auto one = [&](const char* key) {
    if (json.number(key, 1) != 1) json.fail(key, "1");
  };
  text("_class_name", "UNet2DConditionModel");
  const std::string act_fn = json.string("act_fn", "silu");
  if (act_fn != "silu" && act_fn != "swish") json.fail("act_fn", "\"silu\" or \"swish\", which are the same");
  text("resnet_time_scale_shift", "default");
  text("time_embedding_type", "positional");
  text("attention_type", "default", Null::kDefault);
  for (const char* key : {"center_input_sample", "dual_cross_attention", "class_embeddings_concat",
                          "resnet_skip_time_act", "mid_block_only_cross_attention"})
    no(key);
  for (const char* key : {"mid_block_scale_factor", "resnet_out_scale_factor", "downsample_padding"})
    one(key);
  for (const char* key :
       {"encoder_hid_dim", "encoder_hid_dim_type", "class_embed_type", "num_class_embeds",
        "timestep_post_act", "time_embedding_act_fn", "time_embedding_dim", "cross_attention_norm"}) {
    if (json.has(key)) json.refuse(key, "U-Nets with this layer cannot run yet");
  }
  // diffusers refuses it too: its U-Nets have the number of heads under attention_head_dim.
  if (json.has("num_attention_heads"))
    json.fail("num_attention_heads", "null, with the heads in attention_head_dim");
  if (!json.boolean("flip_sin_to_cos", true)) json.fail("flip_sin_to_cos", "true");
  if (json.number("freq_shift", 0) != 0) json.fail("freq_shift", "0");
  for (const char* key : {"conv_in_kernel", "conv_out_kernel"}) {
    if (json.integer(key, 3) != 3) json.fail(key, "3");
  }
  if (const Json* const value = json.value("only_cross_attention")) {
    const bool is_false =
        *value == false || (value->is_array() && std::all_of(value->begin(), value->end(),
                                                             [](const Json& each) { return each == false; }));
    if (!is_false) json.fail("only_cross_attention", "false");
  }
}

// Reads the numbers of channels, starting with the finest level.
std::vector<int64_t> read_channels(const JsonConfig& json, int64_t norm_groups) {
  std::vector<int64_t> channels =
      json.integers("block_out_channels", std::vector<int64_t>{320, 640, 1280, 1280});
  if (channels.empty() || channels.size() > kMaxLevels)
    json.fail("block_out_channels", fmt::format("1 to {} numbers", kMaxLevels));
  for (const int64_t each : channels) {
    if (each < 1 || each > kMaxSize || each % norm_groups != 0) {
      json.fail("block_out_channels",
                fmt::format("multiples of norm_num_groups ({}), at most {}", norm_groups, kMaxSize));
    }
  }
  return channels;
}

std::vector<int64_t> read_transformer_layers(const JsonConfig& json, size_t levels) {
  return per_level(json, "transformer_layers_per_block", levels, kMaxLayersOfTransformer, {1});
}

std::vector<UNet2DConfig::Level> read_levels(const JsonConfig& json, int64_t norm_groups) {
  const std::vector<int64_t> channels = read_channels(json, norm_groups);
  const size_t count = channels.size();
  const auto layers = per_level(json, "layers_per_block", count, kMaxLayers, {2});
  const auto contexts = per_level(json, "cross_attention_dim", count, kMaxSize, {1280});
  for (const int64_t width : contexts) {
    if (width != contexts.front()) json.fail("cross_attention_dim", "the same at all levels");
  }
  const auto heads = per_level(json, kHeads, count, kMaxSize, {8});
  const auto transformers = read_transformer_layers(json, count);
  const auto up_transformers =
      json.has("reverse_transformer_layers_per_block")
          ? per_level(json, "reverse_transformer_layers_per_block", count, kMaxLayersOfTransformer, {1})
          : std::vector<int64_t>(transformers.rbegin(), transformers.rend());
  std::vector<std::string> down_types(count, "CrossAttnDownBlock2D"), up_types(count, "CrossAttnUpBlock2D");
  down_types.back() = "DownBlock2D";
  up_types.front() = "UpBlock2D";
  const auto down =
      attending(json, "down_block_types", "DownBlock2D", "CrossAttnDownBlock2D", count, down_types);
  const auto up = attending(json, "up_block_types", "UpBlock2D", "CrossAttnUpBlock2D", count, up_types);

  std::vector<UNet2DConfig::Level> levels;
  for (size_t i = 0; i < count; ++i) {
    const size_t from_end = count - 1 - i;  // up blocks start at the coarsest level
    levels.push_back({.channels = channels[i],
                      .layers = layers[i],
                      .heads = heads[i],
                      .context_width = contexts[i],
                      .down_transformers = down[i] ? transformers[i] : 0,
                      .up_transformers = up[from_end] ? up_transformers[from_end] : 0});
    if (down[i] || up[from_end]) require_whole_heads(json, levels.back());
  }
  return levels;
}

// diffusers divides by half the dimension less 1 to get the frequencies, so that a dimension of 2 or 3 gives
// none.
int64_t read_time_cond_proj_dim(const JsonConfig& json) {
  if (!json.has("time_cond_proj_dim")) return 0;
  const int64_t dim = json.count("time_cond_proj_dim", kMaxSize);
  if (dim == 2 || dim == 3)
    json.fail("time_cond_proj_dim", "null, 1, or 4 and more: fewer have no frequencies");
  return dim;
}

}  // namespace

UNet2DConfig::UNet2DConfig(const JsonConfig& json)
    : has_mid_block(true),
      mid_transformers(0),
      mid_heads(1),
      in_channels(json.count("in_channels", kMaxSize, 4)),
      out_channels(json.count("out_channels", kMaxSize, 4)),
      sample_size(json.has("sample_size") ? json.count("sample_size", kMaxSize) : 64),
      norm_groups(json.count("norm_num_groups", kMaxSize, 32)),
      norm_eps(json.number_within("norm_eps", 0, 1, 1e-5)),
      use_linear_projection(json.boolean("use_linear_projection", false)),
      addition_time_embed_dim(0),
      addition_inputs(0),
      time_cond_proj_dim(read_time_cond_proj_dim(json)) {
  require_usual(json);
  if (out_channels != in_channels) json.fail("in_channels", fmt::format("{}, as out_channels", out_channels));
  levels = read_levels(json, norm_groups);
  const Json* const mid_block_type = json.value("mid_block_type");
  has_mid_block = !mid_block_type || !mid_block_type->is_null();
  const std::string middle = json.string("mid_block_type", "UNetMidBlock2DCrossAttn", Null::kDefault);
  if (middle != "UNetMidBlock2DCrossAttn") json.fail("mid_block_type", "\"UNetMidBlock2DCrossAttn\" or null");
  mid_transformers = read_transformer_layers(json, levels.size()).back();
  mid_heads = levels.back().heads;
  require_whole_heads(json, levels.back());

  if (!json.has("addition_embed_type")) return;
  if (json.string("addition_embed_type") != "text_time")
    json.fail("addition_embed_type", "null or \"text_time\"");
  addition_time_embed_dim = json.count("addition_time_embed_dim", kMaxSize);
  addition_inputs = json.count("projection_class_embeddings_input_dim", kMaxSize);
  if (addition_inputs <= 6 * addition_time_embed_dim) {
    json.fail("projection_class_embeddings_input_dim",
              fmt::format("more than 6 times addition_time_embed_dim ({})", addition_time_embed_dim));
  }
}

}  // namespace tessera::models
