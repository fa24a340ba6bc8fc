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

// Files that hold only the trunk may omit the first part of the name. Those of Mistral 3 have names of
// transformers 4 or 5.
weights::Scope trunk_of(const weights::Scope& scope) {
  for (const weights::Scope& place :
       {scope, scope / "language_model" / "model", scope / "model" / "language_model"}) {
    if ((place / "embed_tokens").has("weight")) return place;
  }
  return scope / "model";
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
    : depth(config.head_dim) {
  if (config.trunk == Trunk::kQwen3) {
    q_norm.emplace(scope / "q_norm", depth, config.rms_norm_eps);
    k_norm.emplace(scope / "k_norm", depth, config.rms_norm_eps);
  }
  const int64_t num_keys = config.num_key_value_heads;
  const nn::Split queries{num_keys, config.num_attention_heads / num_keys * depth}, keys{num_keys, depth};
  const weights::Scope place = scope.split_at_most(num_keys);
  q_proj = nn::ColumnParallel(place / "q_proj", config.hidden_size, queries, kQwenLinear);
  k_proj = nn::ColumnParallel(place / "k_proj", config.hidden_size, keys, kQwenLinear);
  v_proj = nn::ColumnParallel(place / "v_proj", config.hidden_size, keys, kQwenLinear);
  o_proj = nn::RowParallel(place / "o_proj", queries, config.hidden_size, kQwenLinear);
}

at::Tensor Qwen3Attention::operator()(const at::Tensor& x, const at::Tensor& angles,
                                      const Range& valid) const {
  const auto turned = [&](const std::optional<nn::HeadNorm>& norm, const at::Tensor& part) {
    constexpr auto kPairs = nn::RotaryPairs::kHalves;
    return norm ? (*norm)(part, angles, /*rotates_first=*/false, kPairs) : nn::rotate(part, angles, kPairs);
  };
  const auto own = [&](const at::Tensor& part) { return part.narrow(1, valid.begin, valid.length); };
  const at::Tensor q = turned(q_norm, q_proj(x));       // [1, L, H * d]
  const at::Tensor k = own(turned(k_norm, k_proj(x)));  // [1, valid, K * d]
  const at::Tensor v = own(v_proj(x));
  const int64_t heads = q.size(2) / depth, behind = x.size(1) - valid.end();
  std::vector<at::Tensor> attended = {ops::causal_attention(own(q), k, v, heads)};
  if (behind > 0) attended.push_back(ops::attention(q.narrow(1, valid.end(), behind), k, v, heads));
  const at::Tensor all = behind > 0 ? at::concat(attended, 1) : attended.front();
  return o_proj(valid.begin > 0 ? at::constant_pad_nd(all, {0, 0, valid.begin, 0}) : all);
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

void Qwen3DecoderLayer::operator()(at::Tensor& x, const at::Tensor& angles, const Range& valid) const {
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
      scope_(trunk_of(scope)),
      states_(resolve_states(states, config)),
      num_blocks_(*std::max_element(states_.begin(), states_.end())),
      embedding_((scope_ / "embed_tokens").stored("weight", {config.vocab_size, config.hidden_size})) {
  if (num_blocks_ == config.num_hidden_layers)
    norm_.emplace(scope_ / "norm", config.hidden_size, config.rms_norm_eps);
  if (!blocks_stay) return;
  for (int64_t i = 0; i < num_blocks_; ++i) blocks_.emplace_back(scope_ / "layers" / i, config);
}

at::Tensor Qwen3Encoder::embedded(const std::vector<int64_t>& ids) const {
  const int64_t largest = *std::max_element(ids.begin(), ids.end());
  if (largest >= config_.vocab_size) {
    usage_error(field("prompt"), "holds a token (id {}) that the text encoder, with {} tokens, does not know",
                largest, config_.vocab_size);
  }
  const at::Tensor tokens = at::tensor(ids, at::kLong).to(embedding_.device());
  ops::record_dataflow([&] { return ops::Dataflow{ops::kProgramInput, "tokens", {}, {tokens}}; });
  // The residual stream stays in fp32 for every dtype of the layers.
  return embedding_.index_select(0, tokens).unsqueeze(0).to(scope_.device(), at::kFloat);
}

std::vector<at::Tensor> Qwen3Encoder::operator()(const std::vector<Tokens>& prompts) const {
  std::vector<at::Tensor> hidden, angles;
  std::vector<Range> valid;
  std::vector<int64_t> repeats;  // the number of repetitions of the first token
  for (const auto& [all, own] : prompts) {
    const auto length = static_cast<int64_t>(all.size());
    const Range range = own.value_or(Range{0, length});
    TESSERA_CHECK(range.length > 0 && range.begin >= 0 && range.end() <= length, "{} tokens from {} of {}",
                  range.length, range.begin, length);
    if (length - range.begin > config_.sliding_window.value_or(length)) {
      usage_error(field("max_sequence_length"),
                  "the text encoder takes {} tokens, each of which would see {} at most ('sliding_window' in "
                  "its config.json); only attention without a window can run; give at most as many",
                  length - range.begin, *config_.sliding_window);
    }
    // Padding in front attends to nothing, so all of it is equal to one token.
    const int64_t skipped = std::max<int64_t>(range.begin - 1, 0);
    hidden.push_back(embedded({all.begin() + skipped, all.end()}));
    angles.push_back(nn::rotary_table(at::arange(skipped, length).unsqueeze(1),
                                      {{config_.head_dim, config_.rope_theta}}, scope_.device(),
                                      {at::kFloat, at::kFloat}));
    valid.push_back({range.begin - skipped, range.length});
    repeats.push_back(skipped);
  }
  std::vector<at::Tensor> states = read_states(hidden, [&](const Qwen3DecoderLayer& layer) {
    for (size_t i = 0; i < hidden.size(); ++i) layer(hidden[i], angles[i], valid[i]);
  });
  for (size_t i = 0; i < states.size(); ++i) {
    if (repeats[i] > 0)
      states[i] = at::concat({states[i].narrow(0, 0, 1).expand({repeats[i], -1}), states[i]});
  }
  return states;
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
  if (config_.trunk == Trunk::kMistral3) {
    for (const char* name : {"language_model.lm_head.", "vision_tower.", "model.vision_tower.",
                             "multi_modal_projector.", "model.multi_modal_projector."})
      prefixes.emplace_back(name);
  }
  for (int64_t i = num_blocks_; i < config_.num_hidden_layers; ++i)
    prefixes.push_back((scope_ / "layers" / i).name() + ".");
  if (!norm_) prefixes.push_back((scope_ / "norm").name() + ".");
  return prefixes;
}

}  // namespace tessera::models
