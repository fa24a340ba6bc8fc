// The decoder trunk of Qwen3 (arXiv:2505.09388), whose hidden states serve diffusion models as a text
// encoding, and of Mistral (arXiv:2310.06825), which is the same without norms of queries and keys. Weights
// and names: transformers' Qwen3Model, or Qwen3ForCausalLM, which prefixes `model.`, and
// Mistral3ForConditionalGeneration, of which only the language model is read.
//
// Shapes: L tokens of a prompt, D model width, H local query heads, K local key heads, d width of a head, S
// hidden states that are read.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/range.h"
#include "nn/norm.h"
#include "nn/query_key_norm.h"
#include "nn/tensor_parallel.h"

namespace tessera::models {

enum class Trunk { kQwen3, kMistral3 };

// Rotary positions, whose angles a file may scale for texts longer than those of training.
struct Qwen3Rope {
  // Reads a text encoder's config.json. Throws Error(kInput) for a scaling that is not known.
  Qwen3Rope(const JsonConfig& json, int64_t head_dim);

  // The frequencies of a text of so many tokens, including padding, fp32 [d / 2].
  at::Tensor frequencies_of(int64_t tokens) const { return tokens > most ? beyond(tokens) : frequencies; }

  double theta = 0;
  at::Tensor frequencies;  // of texts of up to `most` tokens
  int64_t most = std::numeric_limits<int64_t>::max();
  std::function<at::Tensor(int64_t tokens)> beyond;
  double factor = 1;  // by which all cosines and sines are multiplied
};

// The activation of a gate: one that is fused into the product, then one that is not.
struct Qwen3Activation {
  ops::Activation in_product = ops::Activation::kNone;
  at::Tensor (*behind)(const at::Tensor&) = nullptr;
};

struct Qwen3Config {
  // Reads a text encoder's config.json. Throws Error(kInput) for options that Qwen3Encoder does not support.
  explicit Qwen3Config(const JsonConfig& json, Trunk trunk = Trunk::kQwen3);

  Trunk trunk;
  int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers;
  int64_t num_attention_heads, num_key_value_heads, head_dim;
  double rms_norm_eps;
  Qwen3Rope rope;
  Qwen3Activation activation;
  bool attention_bias = false;
  // How many tokens a token sees at most in each block, including itself; nothing if it sees all.
  std::vector<std::optional<int64_t>> windows;
  std::string where;  // the file, for errors

 private:
  struct Defaults;
  // `json` has the keys of the language model only.
  Qwen3Config(const JsonConfig& json, Trunk of, const Defaults& defaults);
};

// Query heads that share a key are divided together with it.
struct Qwen3Attention {
  Qwen3Attention(const weights::Scope& scope, const Qwen3Config& config, std::optional<int64_t> window);

  // x [1, L, D]: each of the `valid` tokens sees itself and the valid ones before it; tokens behind these see
  // all valid tokens; tokens before these see nothing. No token sees beyond the window. angles [L, d / 2, 2]
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& angles, const Range& valid) const;

  nn::ColumnParallel q_proj, k_proj, v_proj;
  std::optional<nn::HeadNorm> q_norm, k_norm;
  nn::RowParallel o_proj;
  int64_t depth;
  std::optional<int64_t> window;
};

struct Qwen3MLP {  // SwiGLU (arXiv:2002.05202), or the same with another activation
  Qwen3MLP(const weights::Scope& scope, const Qwen3Config& config);

  at::Tensor operator()(const at::Tensor& x) const;  // [1, L, D]

  nn::ColumnParallel gate_proj, up_proj;
  nn::RowParallel down_proj;
  Qwen3Activation activation;
};

struct Qwen3DecoderLayer {
  // `scope`: all layers.
  Qwen3DecoderLayer(const weights::Scope& scope, const Qwen3Config& config, int64_t number);

  // Adds the outputs of both layers to x, fp32 [1, L, D].
  void operator()(at::Tensor& x, const at::Tensor& angles, const Range& valid) const;

  nn::RmsNorm input_layernorm;
  Qwen3Attention self_attn;
  nn::RmsNorm post_attention_layernorm;
  Qwen3MLP mlp;
};

class Qwen3Encoder {
 public:
  // `states` are places in transformers' `hidden_states`: 0 is the embedding, i the output of i blocks, and
  // the last one, after all blocks, has also passed through the final norm; those below 0 count from the end.
  // Blocks after the last state are not read. Throws Error(kInput) for a state that the model does not have,
  // and for weights that are missing or of another shape.
  Qwen3Encoder(const weights::Scope& scope, const Qwen3Config& config, const std::vector<int64_t>& states);
  // Reads blocks when they are used and frees them afterwards; `scope` must stay valid until then.
  static Qwen3Encoder read_at_use(const weights::Scope& scope, const Qwen3Config& config,
                                  const std::vector<int64_t>& states);

  // The ids of a prompt.
  struct Tokens {
    std::vector<int64_t> ids;
    // The other tokens are padding, all of one id, which transformers masks: no token sees it, but it sees
    // the tokens before it. If empty, all tokens are valid.
    std::optional<Range> valid = {};
    int64_t left_out = 0;  // how many tokens of padding are left out; they count for the length of the text
  };
  // Maps each prompt (at least one token each, not counting padding) to [L, S * D], the states side by side,
  // in the dtype of the scope. Throws Error(kUsage) for an id outside the vocabulary.
  std::vector<at::Tensor> operator()(const std::vector<Tokens>& prompts) const;

  // Prefixes of keys that are not needed: those of later blocks than the last state that is read, of the
  // head, and of the part that reads pictures.
  std::vector<std::string> unused_prefixes() const;

 private:
  Qwen3Encoder(const weights::Scope& scope, const Qwen3Config& config, const std::vector<int64_t>& states,
               bool blocks_stay);
  at::Tensor embedded(const std::vector<int64_t>& ids) const;  // fp32 [1, L, D]
  // The angles of positions [first, end) of a text of so many tokens, fp32 [end - first, d / 2, 2].
  at::Tensor angles_of(int64_t first, int64_t end, int64_t tokens) const;
  // Runs the blocks on `hidden`, [1, L, D] for each prompt, and returns the states [L, S * D] of each.
  std::vector<at::Tensor> read_states(const std::vector<at::Tensor>& hidden,
                                      const std::function<void(const Qwen3DecoderLayer&)>& run) const;

  Qwen3Config config_;
  weights::Scope scope_;
  std::vector<int64_t> states_;            // counted from 0
  int64_t num_blocks_;                     // the number of blocks that are needed
  at::Tensor embedding_;                   // [vocabulary, D] as stored in the file
  std::vector<Qwen3DecoderLayer> blocks_;  // empty where blocks are read at use
  std::optional<nn::RmsNorm> norm_;        // if the last state is read
};

}  // namespace tessera::models
