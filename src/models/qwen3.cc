#include "models/qwen3.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <limits>
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

// Attention of q [1, S, H * d] to k and v [1, T, K * d], which begin with the same token: each token sees
// itself and the `window` - 1 before it. Texts are short, so that all is computed in fp32 with a mask.
at::Tensor windowed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t depth,
                              int64_t window) {
  const at::Tensor ahead = at::arange(k.size(1), at::kLong) - at::arange(q.size(1), at::kLong).unsqueeze(1);
  const at::Tensor is_hidden = (ahead > 0).logical_or(ahead <= -window);
  const at::Tensor mask = at::zeros(ahead.sizes(), at::kFloat)
                              .masked_fill_(is_hidden, -std::numeric_limits<float>::infinity())
                              .to(q.device());
  const int64_t shared = q.size(2) / k.size(2);  // queries of a key
  const auto by_heads = [&](const at::Tensor& x) {
    return x.to(at::kFloat).unflatten(2, {-1, depth}).transpose(1, 2);
  };
  const auto repeated = [&](const at::Tensor& x) { return by_heads(x).repeat_interleave(shared, 1); };
  return ops::biased_attention(by_heads(q) / std::sqrt(static_cast<double>(depth)), repeated(k), repeated(v),
                               mask)
      .transpose(1, 2)
      .flatten(2)
      .to(q.scalar_type());
}

}  // namespace

Qwen3Attention::Qwen3Attention(const weights::Scope& scope, const Qwen3Config& config,
                               std::optional<int64_t> window_of_block)
    : depth(config.head_dim), window(window_of_block) {
  if (config.trunk == Trunk::kQwen3) {
    q_norm.emplace(scope / "q_norm", depth, config.rms_norm_eps);
    k_norm.emplace(scope / "k_norm", depth, config.rms_norm_eps);
  }
  const int64_t num_keys = config.num_key_value_heads;
  const nn::Split queries{num_keys, config.num_attention_heads / num_keys * depth}, keys{num_keys, depth};
  const weights::Scope place = scope.split_at_most(num_keys);
  const ops::LinearOptions options{.bias = config.attention_bias, .packing = kQwenLinear.packing};
  q_proj = nn::ColumnParallel(place / "q_proj", config.hidden_size, queries, options);
  k_proj = nn::ColumnParallel(place / "k_proj", config.hidden_size, keys, options);
  v_proj = nn::ColumnParallel(place / "v_proj", config.hidden_size, keys, options);
  o_proj = nn::RowParallel(place / "o_proj", queries, config.hidden_size, options);
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
  if (window && *window < x.size(1) - valid.begin) {
    // Padding that lies farther behind than the window sees nothing.
    const int64_t seeing = std::min(x.size(1) - valid.begin, valid.length + *window - 1);
    const at::Tensor attended = windowed_attention(q.narrow(1, valid.begin, seeing), k, v, depth, *window);
    return o_proj(at::constant_pad_nd(attended, {0, 0, valid.begin, x.size(1) - valid.begin - seeing}));
  }
  std::vector<at::Tensor> attended = {ops::causal_attention(own(q), k, v, heads)};
  if (behind > 0) attended.push_back(ops::attention(q.narrow(1, valid.end(), behind), k, v, heads));
  const at::Tensor all = behind > 0 ? at::concat(attended, 1) : attended.front();
  return o_proj(valid.begin > 0 ? at::constant_pad_nd(all, {0, 0, valid.begin, 0}) : all);
}

Qwen3MLP::Qwen3MLP(const weights::Scope& scope, const Qwen3Config& config) : activation(config.activation) {
  const nn::Split inner{config.intermediate_size, 1};
  const weights::Scope place = scope.split_at_most(config.intermediate_size);
  gate_proj = nn::ColumnParallel(place / "gate_proj", config.hidden_size, inner, kQwenLinear);
  up_proj = nn::ColumnParallel(place / "up_proj", config.hidden_size, inner, kQwenLinear);
  down_proj = nn::RowParallel(place / "down_proj", inner, config.hidden_size, kQwenLinear);
}

at::Tensor Qwen3MLP::operator()(const at::Tensor& x) const {
  at::Tensor hidden = gate_proj(x, activation.in_product);
  if (activation.behind != nullptr) hidden = activation.behind(hidden);
  hidden *= up_proj(x);
  return down_proj(hidden);
}

Qwen3DecoderLayer::Qwen3DecoderLayer(const weights::Scope& scope, const Qwen3Config& config, int64_t number)
    : input_layernorm(scope / number / "input_layernorm", config.hidden_size, config.rms_norm_eps),
      self_attn(scope / number / "self_attn", config, config.windows[static_cast<size_t>(number)]),
      post_attention_layernorm(scope / number / "post_attention_layernorm", config.hidden_size,
                               config.rms_norm_eps),
      mlp(scope / number / "mlp", config) {}

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
  for (int64_t i = 0; i < num_blocks_; ++i) blocks_.emplace_back(scope_ / "layers", config, i);
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
  for (const auto& [all, own, left_out] : prompts) {
    const auto length = static_cast<int64_t>(all.size());
    const Range range = own.value_or(Range{0, length});
    TESSERA_CHECK(range.length > 0 && range.begin >= 0 && range.end() <= length, "{} tokens from {} of {}",
                  range.length, range.begin, length);
    // Padding in front attends to nothing, so all of it is equal to one token.
    const int64_t skipped = std::max<int64_t>(range.begin - 1, 0);
    hidden.push_back(embedded({all.begin() + skipped, all.end()}));
    angles.push_back(angles_of(skipped, length, length + left_out));
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

at::Tensor Qwen3Encoder::angles_of(int64_t first, int64_t end, int64_t tokens) const {
  const at::Tensor angles =
      at::outer(at::arange(first, end, at::kFloat), config_.rope.frequencies_of(tokens));
  return (at::stack({at::cos(angles), at::sin(angles)}, 2) * config_.rope.factor).to(scope_.device());
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
      run(Qwen3DecoderLayer(scope_ / "layers", config_, block));
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
