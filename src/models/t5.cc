#include "models/t5.h"

#include <ATen/TensorIndexing.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "ops/operation.h"
#include "ops/text_attention.h"

namespace tessera::models {
namespace {

constexpr ops::LinearOptions kLinear{.bias = false, .packing = ops::Packing::kAsStored};

// Published checkpoints store the embedding table under one name, the other, or both. If the two differ, the
// encoder's counts, as in transformers.
at::Tensor read_embedding(const weights::Scope& scope, const T5Config& config) {
  at::Tensor table;
  for (const weights::Scope& place : {scope / "shared", scope / "encoder" / "embed_tokens"}) {
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
  // The computation is in fp32 and in the order of transformers, because the bounds between buckets depend on
  // the rounding.
  const at::Tensor far =
      (at::log(distance.to(at::kFloat) / single) / growth * (half - single)).to(at::kLong) + single;
  const at::Tensor bucket = at::where(distance < single, distance, far.clamp_max(half - 1));
  return bucket + (relative > 0).to(at::kLong) * half;
}

T5Attention::T5Attention(const weights::Scope& scope, const T5Config& config) : depth(config.d_kv) {
  const nn::Split heads{config.num_heads, config.d_kv};
  const weights::Scope place = scope.split_at_most(config.num_heads);
  q = nn::ColumnParallel(place / "q", config.d_model, heads, kLinear);
  k = nn::ColumnParallel(place / "k", config.d_model, heads, kLinear);
  v = nn::ColumnParallel(place / "v", config.d_model, heads, kLinear);
  o = nn::RowParallel(place / "o", heads, config.d_model, kLinear);
}

at::Tensor T5Attention::operator()(const at::Tensor& x, const at::Tensor& bias) const {
  const auto project = [&](const nn::ColumnParallel& layer) {  // [1, H, L, d]
    return layer(x).view({1, x.size(0), -1, depth}).transpose(1, 2);
  };
  const at::Tensor attended = ops::biased_attention(project(q), project(k), project(v), bias);
  return o(attended.transpose(1, 2).reshape({x.size(0), -1}));
}

T5FeedForward::T5FeedForward(const weights::Scope& scope, const T5Config& config)
    : activation(config.activation) {
  const nn::Split inner{config.d_ff, 1};
  const weights::Scope place = scope.split_at_most(config.num_heads);
  wi = nn::ColumnParallel(place / (config.gated ? "wi_0" : "wi"), config.d_model, inner, kLinear);
  if (config.gated) wi_gate.emplace(place / "wi_1", config.d_model, inner, kLinear);
  // In large checkpoints these products exceed the range of fp16.
  wo_dtype = scope.dtype() == at::kHalf ? at::kFloat : scope.dtype();
  wo = nn::RowParallel(place.with_dtype(wo_dtype) / "wo", inner, config.d_model, kLinear);
}

at::Tensor T5FeedForward::operator()(const at::Tensor& x) const {
  at::Tensor hidden = wi(x, activation);  // [L, F]
  if (wi_gate) hidden *= (*wi_gate)(x);
  return wo(hidden.to(wo_dtype));
}

T5Block::T5Block(const weights::Scope& scope, const T5Config& config)
    : attention_norm(scope / "layer" / 0 / "layer_norm", config.d_model, config.layer_norm_epsilon),
      attention(scope / "layer" / 0 / "SelfAttention", config),
      feed_forward_norm(scope / "layer" / 1 / "layer_norm", config.d_model, config.layer_norm_epsilon),
      feed_forward(scope / "layer" / 1 / "DenseReluDense", config) {}

void T5Block::operator()(at::Tensor& x, const at::Tensor& bias) const {
  x += attention(attention_norm(x), bias);
  x += feed_forward(feed_forward_norm(x));
}

T5Encoder::T5Encoder(const weights::Scope& scope, const T5Config& config)
    : T5Encoder(scope, config, /*blocks_stay=*/true) {}

T5Encoder T5Encoder::read_at_use(const weights::Scope& scope, const T5Config& config) {
  return {scope, config, /*blocks_stay=*/false};
}

T5Encoder::T5Encoder(const weights::Scope& scope, const T5Config& config, bool blocks_stay)
    : config_(config),
      block_scope_(scope / "encoder" / "block"),
      embedding_(read_embedding(scope, config)),
      final_norm_(scope / "encoder" / "final_layer_norm", config.d_model, config.layer_norm_epsilon) {
  relative_bias_ = nn::read_split(
      (block_scope_ / 0 / "layer" / 0 / "SelfAttention" / "relative_attention_bias")
          .split_at_most(config.num_heads),
      "weight", {config.relative_attention_num_buckets, config.num_heads}, 1, {config.num_heads, 1});
  if (!blocks_stay) return;
  for (int64_t i = 0; i < config.num_layers; ++i) blocks_.emplace_back(block_scope_ / i, config);
}

std::vector<at::Tensor> T5Encoder::operator()(const std::vector<std::vector<int64_t>>& ids) const {
  std::vector<at::Tensor> hidden, biases;
  for (const std::vector<int64_t>& prompt : ids) {
    TESSERA_CHECK(!prompt.empty(), "no tokens");
    const int64_t largest = *std::max_element(prompt.begin(), prompt.end());
    if (largest >= config_.vocab_size) {
      usage_error(field("prompt"),
                  "holds a token (id {}) that the text encoder, with {} tokens, does not know", largest,
                  config_.vocab_size);
    }
    const at::Device device = relative_bias_.device();
    const at::Tensor buckets = t5_relative_position_buckets(static_cast<int64_t>(prompt.size()),
                                                            config_.relative_attention_num_buckets,
                                                            config_.relative_attention_max_distance)
                                   .to(device);
    biases.push_back(relative_bias_.index({buckets}).permute({2, 0, 1}).unsqueeze(0).contiguous());
    // The residual stream stays in fp32 for every dtype of the layers, because fp16 would overflow.
    const at::Tensor tokens = at::tensor(prompt, at::kLong).to(embedding_.device());
    ops::record_dataflow([&] { return ops::Dataflow{ops::kProgramInput, "tokens", {}, {tokens}}; });
    hidden.push_back(embedding_.index_select(0, tokens).to(device, at::kFloat));
  }
  const auto run = [&](const T5Block& block) {
    for (size_t i = 0; i < hidden.size(); ++i) block(hidden[i], biases[i]);
  };
  if (blocks_.empty()) {
    for (int64_t i = 0; i < config_.num_layers; ++i) run(T5Block(block_scope_ / i, config_));
  } else {
    for (const T5Block& block : blocks_) run(block);
  }
  for (at::Tensor& x : hidden) x = final_norm_(x);
  return hidden;
}

}  // namespace tessera::models
