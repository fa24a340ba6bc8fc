#include "models/clip.h"

#include <algorithm>

#include "core/error.h"
#include "ops/activations.h"
#include "ops/operation.h"
#include "ops/text_attention.h"

namespace tessera::models {
namespace {

// Weights stay as stored in the file, because an encoder runs only once or twice while it is loaded.
constexpr ops::LinearOptions kLinear{.packing = ops::Packing::kAsStored};
// Released configs have eos_token_id 2, which is not the end token of CLIP's vocabulary.
constexpr int64_t kLegacyEnd = 2;

// Files of single encoders may omit the first part of the name.
weights::Scope text_model(const weights::Scope& scope) {
  const weights::Scope bare = scope / "final_layer_norm";
  return bare.has("weight") ? scope : scope / "text_model";
}

}  // namespace

CLIPEncoderLayer::CLIPEncoderLayer(const weights::Scope& scope, const CLIPTextConfig& config)
    : layer_norm1(scope / "layer_norm1", config.hidden_size, config.layer_norm_eps),
      layer_norm2(scope / "layer_norm2", config.hidden_size, config.layer_norm_eps),
      depth(config.hidden_size / config.num_attention_heads),
      quick_gelu(config.quick_gelu) {
  const weights::Scope place = scope.split_at_most(config.num_attention_heads);
  const nn::Split heads{config.num_attention_heads, depth}, inner{config.intermediate_size, 1};
  const weights::Scope attention = place / "self_attn";
  to_qkv = nn::ColumnParallel(
      {{attention / "q_proj", heads}, {attention / "k_proj", heads}, {attention / "v_proj", heads}},
      config.hidden_size, kLinear);
  out_proj = nn::RowParallel(attention / "out_proj", heads, config.hidden_size, kLinear);
  fc1 = nn::ColumnParallel(place / "mlp" / "fc1", config.hidden_size, inner, kLinear);
  fc2 = nn::RowParallel(place / "mlp" / "fc2", inner, config.hidden_size, kLinear);
}

void CLIPEncoderLayer::operator()(at::Tensor& x) const {
  const std::vector<at::Tensor> qkv = to_qkv.each(layer_norm1(x));
  x += out_proj(ops::causal_attention(qkv[0], qkv[1], qkv[2], qkv[0].size(2) / depth));
  const at::Tensor normed = layer_norm2(x);
  x += fc2(quick_gelu ? ops::quick_gelu(fc1(normed)) : fc1(normed, ops::Activation::kGelu));
}

CLIPTextEncoder::CLIPTextEncoder(const weights::Scope& scope, const CLIPTextConfig& config)
    : config_(config),
      token_embedding_((text_model(scope) / "embeddings" / "token_embedding")
                           .stored("weight", {config.vocab_size, config.hidden_size})),
      position_embedding_((text_model(scope) / "embeddings" / "position_embedding")
                              .tensor("weight", {config.max_position_embeddings, config.hidden_size})),
      final_layer_norm_(text_model(scope) / "final_layer_norm", config.hidden_size, config.layer_norm_eps),
      dtype_(scope.dtype()) {
  for (int64_t i = 0; i < config.num_hidden_layers; ++i)
    layers_.emplace_back(text_model(scope) / "encoder" / "layers" / i, config);
  if (config.has_projection) {
    text_projection_ = ops::Linear(scope / "text_projection", config.hidden_size, config.projection_dim,
                                   {.bias = false, .packing = ops::Packing::kAsStored});
  }
}

// With the legacy id, transformers takes the token with the largest id, which is the end token in CLIP's
// vocabulary.
at::Tensor CLIPTextEncoder::end_of(const at::Tensor& ids) const {
  const bool is_legacy = config_.eos_token_id == kLegacyEnd;
  return (is_legacy ? ids : (ids == config_.eos_token_id).to(at::kLong)).argmax(0, /*keepdim=*/true);
}

CLIPTextEncoder::Output CLIPTextEncoder::operator()(const std::vector<int64_t>& ids, int64_t skip,
                                                    bool normed) const {
  const auto length = static_cast<int64_t>(ids.size());
  TESSERA_CHECK(length >= 1 && length <= config_.max_position_embeddings, "{} tokens", length);
  TESSERA_CHECK(skip >= 0 && skip <= config_.num_hidden_layers, "{} layers left out of {}", skip,
                config_.num_hidden_layers);
  const int64_t largest = *std::max_element(ids.begin(), ids.end());
  if (largest >= config_.vocab_size) {
    usage_error(field("prompt"), "holds a token (id {}) that the text encoder, with {} tokens, does not know",
                largest, config_.vocab_size);
  }
  const at::Tensor tokens = at::tensor(ids, at::kLong).to(token_embedding_.device());
  ops::record_dataflow([&] { return ops::Dataflow{ops::kProgramInput, "tokens", {}, {tokens}}; });
  const at::Tensor rows = token_embedding_.index_select(0, tokens);
  at::Tensor x = (rows.to(position_embedding_.device(), dtype_) + position_embedding_.narrow(0, 0, length))
                     .unsqueeze(0);  // [1, L, D]
  const int64_t last = config_.num_hidden_layers - skip;
  Output output;
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    if (i == last) output.hidden = x.clone();
    if (i >= last && !config_.has_projection) break;
    layers_[static_cast<size_t>(i)](x);
  }
  if (skip == 0) output.hidden = x;
  output.hidden = (normed ? final_layer_norm_(output.hidden) : output.hidden).squeeze(0);
  if (config_.has_projection) {
    const at::Tensor end = ops::token_at(x, end_of(tokens));  // [1, 1, D]
    output.pooled = text_projection_(final_layer_norm_(end)).flatten();
  }
  return output;
}

}  // namespace tessera::models
