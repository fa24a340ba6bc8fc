#include "models/qwen3.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <map>

#include "core/error.h"
#include "nn/rotary.h"
#include "ops/attention.h"
#include "ops/operation.h"
#include "ops/text_attention.h"

namespace tessera::models {
namespace {

// Weights stay as stored in the file, because an encoder runs only once or twice while it is loaded.
constexpr ops::LinearOptions kQwenLinear{.bias = false, .packing = ops::Packing::kAsStored};

// Files that hold only the trunk may omit the first part of the name.
weights::Scope trunk(const weights::Scope& scope) {
  return (scope / "embed_tokens").has("weight") ? scope : scope / "model";
}

// States are counted from 0.
std::vector<int64_t> resolve_states(const std::vector<int64_t>& states, const Qwen3Config& config) {
  std::vector<int64_t> resolved;
  for (const int64_t state : states) {
    resolved.push_back(state < 0 ? state + config.num_hidden_layers + 1 : state);
    if (resolved.back() < 0 || resolved.back() > config.num_hidden_layers) {
      input_error(config.where,
                  "'num_hidden_layers' is {}: the model reads hidden state {}, which is not there",
                  config.num_hidden_layers, state);
    }
  }
  return resolved;
}

}  // namespace

Qwen3Attention::Qwen3Attention(const weights::Scope& scope, const Qwen3Config& config)
    : q_norm(scope / "q_norm", config.head_dim, config.rms_norm_eps),
      k_norm(scope / "k_norm", config.head_dim, config.rms_norm_eps),
      depth(config.head_dim) {
  const int64_t num_keys = config.num_key_value_heads;
  const nn::Split queries{num_keys, config.num_attention_heads / num_keys * depth}, keys{num_keys, depth};
  const weights::Scope place = scope.split_at_most(num_keys);
  q_proj = nn::ColumnParallel(place / "q_proj", config.hidden_size, queries, kQwenLinear);
  k_proj = nn::ColumnParallel(place / "k_proj", config.hidden_size, keys, kQwenLinear);
  v_proj = nn::ColumnParallel(place / "v_proj", config.hidden_size, keys, kQwenLinear);
  o_proj = nn::RowParallel(place / "o_proj", queries, config.hidden_size, kQwenLinear);
}

at::Tensor Qwen3Attention::operator()(const at::Tensor& x, const at::Tensor& angles, int64_t valid) const {
  const auto normed = [&](const nn::HeadNorm& norm, const nn::ColumnParallel& layer) {
    return norm(layer(x), angles, /*rotates_first=*/false, nn::RotaryPairs::kHalves);
  };
  const at::Tensor q = normed(q_norm, q_proj);                      // [1, L, H * d]
  const at::Tensor k = normed(k_norm, k_proj).narrow(1, 0, valid);  // [1, valid, K * d]
  const at::Tensor v = v_proj(x).narrow(1, 0, valid);
  const int64_t heads = q.size(2) / depth, padding = x.size(1) - valid;
  std::vector<at::Tensor> attended = {ops::causal_attention(q.narrow(1, 0, valid), k, v, heads)};
  if (padding > 0) attended.push_back(ops::attention(q.narrow(1, valid, padding), k, v, heads));
  return o_proj(padding > 0 ? at::concat(attended, 1) : attended.front());
}

Qwen3MLP::Qwen3MLP(const weights::Scope& scope, const Qwen3Config& config) {
  const nn::Split inner{config.intermediate_size, 1};
  const weights::Scope place = scope.split_at_most(config.intermediate_size);
  gate_proj = nn::ColumnParallel(place / "gate_proj", config.hidden_size, inner, kQwenLinear);
  up_proj = nn::ColumnParallel(place / "up_proj", config.hidden_size, inner, kQwenLinear);
  down_proj = nn::RowParallel(place / "down_proj", inner, config.hidden_size, kQwenLinear);
}

at::Tensor Qwen3MLP::operator()(const at::Tensor& x) const {
  at::Tensor hidden = gate_proj(x, ops::Activation::kSilu);
  hidden *= up_proj(x);
  return down_proj(hidden);
}

Qwen3DecoderLayer::Qwen3DecoderLayer(const weights::Scope& scope, const Qwen3Config& config)
    : input_layernorm(scope / "input_layernorm", config.hidden_size, config.rms_norm_eps),
      self_attn(scope / "self_attn", config),
      post_attention_layernorm(scope / "post_attention_layernorm", config.hidden_size, config.rms_norm_eps),
      mlp(scope / "mlp", config) {}

void Qwen3DecoderLayer::operator()(at::Tensor& x, const at::Tensor& angles, int64_t valid) const {
  x += self_attn(input_layernorm(x), angles, valid);
  x += mlp(post_attention_layernorm(x));
}

Qwen3Encoder::Qwen3Encoder(const weights::Scope& scope, const Qwen3Config& config,
                           const std::vector<int64_t>& states)
    : Qwen3Encoder(scope, config, states, /*blocks_stay=*/true) {}

Qwen3Encoder Qwen3Encoder::read_at_use(const weights::Scope& scope, const Qwen3Config& config,
                                       const std::vector<int64_t>& states) {
  return {scope, config, states, /*blocks_stay=*/false};
}

Qwen3Encoder::Qwen3Encoder(const weights::Scope& scope, const Qwen3Config& config,
                           const std::vector<int64_t>& states, bool blocks_stay)
    : config_(config),
      scope_(trunk(scope)),
      states_(resolve_states(states, config)),
      num_blocks_(*std::max_element(states_.begin(), states_.end())),
      embedding_((scope_ / "embed_tokens").stored("weight", {config.vocab_size, config.hidden_size})) {
  if (num_blocks_ == config.num_hidden_layers)
    norm_.emplace(scope_ / "norm", config.hidden_size, config.rms_norm_eps);
  if (!blocks_stay) return;
  for (int64_t i = 0; i < num_blocks_; ++i) blocks_.emplace_back(scope_ / "layers" / i, config);
}

std::vector<at::Tensor> Qwen3Encoder::operator()(const std::vector<Tokens>& prompts) const {
  std::vector<at::Tensor> hidden, angles;
  std::vector<int64_t> valid;
  for (const auto& [ids, count] : prompts) {
    const auto length = static_cast<int64_t>(ids.size());
    valid.push_back(count.value_or(length));
    TESSERA_CHECK(valid.back() > 0 && valid.back() <= length, "{} of {} tokens", valid.back(), length);
    const int64_t largest = *std::max_element(ids.begin(), ids.end());
    if (largest >= config_.vocab_size) {
      usage_error(field("prompt"),
                  "holds a token (id {}) that the text encoder, with {} tokens, does not know", largest,
                  config_.vocab_size);
    }
    const at::Tensor tokens = at::tensor(ids, at::kLong).to(embedding_.device());
    ops::record_dataflow([&] { return ops::Dataflow{ops::kProgramInput, "tokens", {}, {tokens}}; });
    // The residual stream stays in fp32 for every dtype of the layers.
    hidden.push_back(embedding_.index_select(0, tokens).unsqueeze(0).to(scope_.device(), at::kFloat));
    angles.push_back(nn::rotary_table(at::arange(length).unsqueeze(1),
                                      {{config_.head_dim, config_.rope_theta}}, scope_.device(),
                                      {at::kFloat, at::kFloat}));
  }
  return read_states(hidden, [&](const Qwen3DecoderLayer& layer) {
    for (size_t i = 0; i < hidden.size(); ++i) layer(hidden[i], angles[i], valid[i]);
  });
}

std::vector<at::Tensor> Qwen3Encoder::read_states(
    const std::vector<at::Tensor>& hidden, const std::function<void(const Qwen3DecoderLayer&)>& run) const {
  std::vector<std::map<int64_t, at::Tensor>> states(hidden.size());  // by prompt
  for (int64_t block = 0;; ++block) {
    if (std::find(states_.begin(), states_.end(), block) != states_.end()) {
      const bool is_normed = block == config_.num_hidden_layers;
      for (size_t i = 0; i < hidden.size(); ++i) {
        // This is a copy, since the next block adds to it.
        states[i][block] = is_normed ? (*norm_)(hidden[i])
                                     : hidden[i].to(scope_.dtype(), /*non_blocking=*/false, /*copy=*/true);
      }
    }
    if (block == num_blocks_) break;
    if (blocks_.empty()) {
      run(Qwen3DecoderLayer(scope_ / "layers" / block, config_));
    } else {
      run(blocks_[static_cast<size_t>(block)]);
    }
  }
  std::vector<at::Tensor> outputs;
  for (const std::map<int64_t, at::Tensor>& of_prompt : states) {
    std::vector<at::Tensor> parts;
    for (const int64_t state : states_) parts.push_back(of_prompt.at(state));
    outputs.push_back(at::concat(parts, 2).squeeze(0));
  }
  return outputs;
}

std::vector<std::string> Qwen3Encoder::unused_prefixes() const {
  std::vector<std::string> prefixes = {"lm_head."};
  for (int64_t i = num_blocks_; i < config_.num_hidden_layers; ++i)
    prefixes.push_back((scope_ / "layers" / i).name() + ".");
  if (!norm_) prefixes.push_back((scope_ / "norm").name() + ".");
  return prefixes;
}

}  // namespace tessera::models
