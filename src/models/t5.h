// The encoder of T5 (arXiv:1910.10683) and T5 v1.1 (gated feed-forward), used by diffusion models as a text
// encoder.
//
// Shapes: L tokens of a prompt, D model width, H local heads, d width of a head, F local feed-forward width.
// Prompts are encoded one at a time, at their true length, which is equal to a batch with masked padding.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "core/json.h"
#include "nn/norm.h"
#include "nn/tensor_parallel.h"

namespace tessera::models {

struct T5Config {
  // Reads a text encoder's config.json. Throws Error(kInput) for options that T5Encoder does not support.
  explicit T5Config(const JsonConfig& json);

  int64_t vocab_size, d_model, d_kv, d_ff, num_heads, num_layers;
  int64_t relative_attention_num_buckets, relative_attention_max_distance;
  double layer_norm_epsilon;
  bool gated;  // the feed-forward has two input projections, one of which goes through the activation
  ops::Activation activation;
};

// Returns the buckets of the distances between L tokens, int64 [L, L]: entry (i, j) is the bucket of token j
// relative to token i. Each direction has half of the buckets; of those, half are for single distances, and
// the rest grow with the logarithm of the distance up to `max_distance` (arXiv:1910.10683, section 2.1).
at::Tensor t5_relative_position_buckets(int64_t length, int64_t num_buckets, int64_t max_distance);

// Weights are used as stored in the file: an encoder runs once or twice while it is loaded, so converting
// them to a faster layout would take more time than it saves, and twice the memory.
struct T5Attention {
  T5Attention(const weights::Scope& scope, const T5Config& config);

  at::Tensor operator()(const at::Tensor& x, const at::Tensor& bias) const;  // x [L, D], bias [1, H, L, L]

  nn::ColumnParallel q, k, v;
  nn::RowParallel o;
  int64_t depth;
};

struct T5FeedForward {
  T5FeedForward(const weights::Scope& scope, const T5Config& config);

  at::Tensor operator()(const at::Tensor& x) const;  // x [L, D]

  ops::Activation activation;
  nn::ColumnParallel wi;
  std::optional<nn::ColumnParallel> wi_gate;
  nn::RowParallel wo;  // fp32 if the others are fp16
  at::ScalarType wo_dtype;
};

struct T5Block {
  T5Block(const weights::Scope& scope, const T5Config& config);

  // Adds the outputs of both layers to x, fp32 [L, D].
  void operator()(at::Tensor& x, const at::Tensor& bias) const;

  nn::RmsNorm attention_norm;
  T5Attention attention;
  nn::RmsNorm feed_forward_norm;
  T5FeedForward feed_forward;
};

class T5Encoder {
 public:
  // Throws Error(kInput) for weights that are missing or of another shape.
  T5Encoder(const weights::Scope& scope, const T5Config& config);
  // Reads blocks when they are used and frees them afterwards; `scope` must stay valid until then.
  static T5Encoder read_at_use(const weights::Scope& scope, const T5Config& config);

  // Maps the ids of each prompt (at least one) to [L, D], in the dtype of the scope. Throws Error(kUsage) for
  // an id outside the vocabulary.
  std::vector<at::Tensor> operator()(const std::vector<std::vector<int64_t>>& ids) const;

 private:
  T5Encoder(const weights::Scope& scope, const T5Config& config, bool blocks_stay);

  T5Config config_;
  weights::Scope block_scope_;
  at::Tensor embedding_;         // [vocabulary, D] as stored in the file; only rows are ever read
  at::Tensor relative_bias_;     // [buckets, H]
  std::vector<T5Block> blocks_;  // empty if blocks are read at use
  nn::RmsNorm final_norm_;
};

}  // namespace tessera::models
