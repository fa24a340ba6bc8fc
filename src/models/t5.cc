#include "models/t5.h"

#include <algorithm>
#include <cmath>

#include "comm/collectives.h"
#include "core/error.h"
#include "core/log.h"
#include "text/unicode.h"

namespace tessera::models {
namespace {

weights::Slice slice(int64_t dim, const Range& range, int64_t width = 1) {
  return {dim, range.begin * width, range.length * width};
}

// Published checkpoints hold the table under one name or the other, or both.
at::Tensor read_embedding(const weights::Scope& scope, const T5Config& config) {
  at::Tensor table;
  for (const weights::Scope& place : {scope / "encoder" / "embed_tokens", scope / "shared"}) {
    if (place.has("weight")) table = place.stored("weight", {config.vocab_size, config.d_model});
  }
  return table.defined() ? table : (scope / "shared").stored("weight", {config.vocab_size, config.d_model});
}

}  // namespace

at::Tensor t5_relative_position_buckets(int64_t length, int64_t num_buckets, int64_t max_distance) {
  const int64_t half = num_buckets / 2;
  const int64_t single = half / 2;
  const at::Tensor position = at::arange(length, at::kLong);
  const at::Tensor relative = position.unsqueeze(0) - position.unsqueeze(1);
  const at::Tensor distance = relative.abs();
  const double growth = std::log(static_cast<double>(max_distance) / static_cast<double>(single));
  // In fp32 and in this order, as transformers has it: the bounds between buckets depend on the rounding.
  const at::Tensor far =
      (at::log(distance.to(at::kFloat) / single) / growth * (half - single)).to(at::kLong) + single;
  const at::Tensor bucket = at::where(distance < single, distance, far.clamp_max(half - 1));
  return bucket + (relative > 0).to(at::kLong) * half;
}

T5Attention::T5Attention(const weights::Scope& scope, const T5Config& config,
                         const comm::Group& tensor_group) {
  const Range own = tensor_group.part(config.num_heads);
  const int64_t inner = config.num_heads * config.d_kv;
  const auto rows = slice(0, own, config.d_kv);
  heads = own.length;
  q = (scope / "q").tensor("weight", {inner, config.d_model}, rows);
  k = (scope / "k").tensor("weight", {inner, config.d_model}, rows);
  v = (scope / "v").tensor("weight", {inner, config.d_model}, rows);
  o = (scope / "o").tensor("weight", {config.d_model, inner}, slice(1, own, config.d_kv));
}

at::Tensor T5Attention::operator()(const at::Tensor& x, const at::Tensor& bias) const {
  if (heads == 0) return at::zeros_like(x);             // more ranks than heads
  const auto project = [&](const at::Tensor& weight) {  // [1, H/tp, L, d]
    return at::linear(x, weight).view({1, x.size(0), heads, -1}).transpose(1, 2);
  };
  // T5 does not scale the scores: its initialisation did.
  const at::Tensor attended =
      at::scaled_dot_product_attention(project(q), project(k), project(v), bias,
                                       /*dropout_p=*/0, /*is_causal=*/false, /*scale=*/1.0);
  return at::linear(attended.transpose(1, 2).reshape({x.size(0), -1}), o);
}

T5FeedForward::T5FeedForward(const weights::Scope& scope, const T5Config& config,
                             const comm::Group& tensor_group)
    : activation(config.activation) {
  const Range own = tensor_group.part(config.d_ff);
  const auto in = [&](const char* name) {
    return (scope / name).tensor("weight", {config.d_ff, config.d_model}, slice(0, own));
  };
  wi = in(config.gated ? "wi_0" : "wi");
  if (config.gated) wi_gate = in("wi_1");
  // The products of large checkpoints leave the range of fp16 here.
  const weights::Scope out = scope.dtype() == at::kHalf ? scope.with_dtype(at::kFloat) : scope;
  wo = (out / "wo").tensor("weight", {config.d_model, config.d_ff}, slice(1, own));
}

at::Tensor T5FeedForward::operator()(const at::Tensor& x) const {
  at::Tensor hidden = ops::activate(at::linear(x, wi), activation);  // [L, F/tp]
  if (wi_gate.defined()) hidden *= at::linear(x, wi_gate);
  return at::linear(hidden.to(wo.scalar_type()), wo);
}

T5Block::T5Block(const weights::Scope& scope, const T5Config& config, const comm::Group& group)
    : attention_norm(scope / "layer" / 0 / "layer_norm", config.d_model, config.layer_norm_epsilon),
      attention(scope / "layer" / 0 / "SelfAttention", config, group),
      feed_forward_norm(scope / "layer" / 1 / "layer_norm", config.d_model, config.layer_norm_epsilon),
      feed_forward(scope / "layer" / 1 / "DenseReluDense", config, group),
      tensor_group(group) {}

void T5Block::operator()(at::Tensor& x, const at::Tensor& bias) const {
  x += comm::all_reduce(attention(attention_norm(x), bias), tensor_group);
  x += comm::all_reduce(feed_forward(feed_forward_norm(x)), tensor_group);
}

T5Encoder::T5Encoder(const weights::Scope& scope, const T5Config& config, const comm::Group& tensor_group)
    : config_(config),
      embedding_(read_embedding(scope, config)),
      final_norm_(scope / "encoder" / "final_layer_norm", config.d_model, config.layer_norm_epsilon) {
  const weights::Scope block = scope / "encoder" / "block";
  relative_bias_ = (block / 0 / "layer" / 0 / "SelfAttention" / "relative_attention_bias")
                       .tensor("weight", {config.relative_attention_num_buckets, config.num_heads},
                               slice(1, tensor_group.part(config.num_heads)));
  for (int64_t i = 0; i < config.num_layers; ++i) blocks_.emplace_back(block / i, config, tensor_group);
}

at::Tensor T5Encoder::operator()(at::ArrayRef<int64_t> ids) const {
  TESSERA_CHECK(!ids.empty(), "no tokens");
  const int64_t largest = *std::max_element(ids.begin(), ids.end());
  if (largest >= config_.vocab_size) {
    usage_error("prompt", "holds a token (id {}) that the text encoder, with {} tokens, does not know",
                largest, config_.vocab_size);
  }
  const at::Device device = relative_bias_.device();
  const at::Tensor buckets =
      t5_relative_position_buckets(static_cast<int64_t>(ids.size()), config_.relative_attention_num_buckets,
                                   config_.relative_attention_max_distance)
          .to(device);
  const at::Tensor bias = relative_bias_.index({buckets}).permute({2, 0, 1}).unsqueeze(0).contiguous();
  // The sum over the layers is kept in fp32, whatever the layers compute in: fp16 would overflow.
  at::Tensor x = embedding_.index_select(0, at::tensor(ids, at::kLong)).to(device, at::kFloat);
  for (const T5Block& block : blocks_) block(x, bias);
  return final_norm_(x);
}

T5TextEncoder::T5TextEncoder(text::T5Tokenizer tokenizer, T5Encoder encoder)
    : tokenizer_(std::move(tokenizer)), encoder_(std::move(encoder)) {}

Conditioning T5TextEncoder::encode(const std::string& prompt, int64_t max_length) const {
  return {encoder_(tokenizer_.encode(text::clean_prompt(prompt), max_length))};
}

std::unique_ptr<TextEncoder> load_t5_text_encoder(const std::filesystem::path& model,
                                                  const LoadOptions& options, LoadStatistics& statistics) {
  const std::filesystem::path folder = model / "text_encoder";
  const T5Config config(JsonConfig::read(folder / "config.json"));
  text::T5Tokenizer tokenizer(model / "tokenizer");
  weights::Checkpoint checkpoint(folder);
  const weights::Scope scope(checkpoint, options.dtype, options.device);
  // More ranks than heads: each takes the whole.
  const comm::Group& group = options.tensor_groups.inner;
  T5Encoder encoder(scope, config, group.size <= config.num_heads ? group : comm::Group{});
  for (const std::string& key : checkpoint.unused()) {
    // Whole T5 models come with a decoder.
    if (key.starts_with("decoder.") || key.starts_with("lm_head.")) continue;
    log_warning("[{}] weight '{}' is not used", folder.string(), key);
  }
  statistics.bytes_read += checkpoint.bytes_used();
  statistics.bytes_held += checkpoint.bytes_held();
  return std::make_unique<T5TextEncoder>(std::move(tokenizer), std::move(encoder));
}

}  // namespace tessera::models
