// The encoder of T5 (arXiv:1910.10683) and T5 v1.1 (gated feed-forward), as text encoder of diffusion models.
//
// Legend: L tokens of a prompt, D model width, H heads, d width of a head, F feed-forward width, tp ranks of
// the tensor group. One prompt is encoded at a time, at its own length: this equals a batch with masked
// padding.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "comm/group.h"
#include "core/json.h"
#include "models/family.h"
#include "nn/norm.h"
#include "ops/linear.h"
#include "text/t5_tokenizer.h"
#include "weights/scope.h"

namespace tessera::models {

struct T5Config {
  // Reads a text encoder's config.json. Throws Error(kInput) for what T5Encoder cannot run.
  explicit T5Config(const JsonConfig& json);

  int64_t vocab_size, d_model, d_kv, d_ff, num_heads, num_layers;
  int64_t relative_attention_num_buckets, relative_attention_max_distance;
  double layer_norm_epsilon;
  bool gated;  // two input projections in the feed-forward, of which one goes through the activation
  ops::Activation activation;
};

// Buckets of the distances between L tokens, int64 [L, L]: entry (i, j) is that of token j seen from token i.
// Half of the buckets are for each direction; of those, half are for single distances, the others grow with
// the logarithm of the distance up to `max_distance` (arXiv:1910.10683, section 2.1).
at::Tensor t5_relative_position_buckets(int64_t length, int64_t num_buckets, int64_t max_distance);

// Weights are used as they lie in the file: an encoder runs once or twice in its life, so bringing them into
// a faster layout would cost more than it gains, and twice the memory.
struct T5Attention {
  T5Attention(const weights::Scope& scope, const T5Config& config, const comm::Group& tensor_group);

  // x [L, D], bias [1, H/tp, L, L] -> [L, D], to be summed over the ranks of the group.
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& bias) const;

  int64_t heads;       // H/tp
  at::Tensor q, k, v;  // [H/tp * d, D]
  at::Tensor o;        // [D, H/tp * d]
};

struct T5FeedForward {
  T5FeedForward(const weights::Scope& scope, const T5Config& config, const comm::Group& tensor_group);

  // x [L, D] -> [L, D], to be summed over the ranks of the group.
  at::Tensor operator()(const at::Tensor& x) const;

  ops::Activation activation;
  at::Tensor wi;       // [F/tp, D]
  at::Tensor wi_gate;  // [F/tp, D], undefined when there is no gate
  at::Tensor wo;       // [D, F/tp]; fp32 when the others are fp16
};

struct T5Block {
  T5Block(const weights::Scope& scope, const T5Config& config, const comm::Group& tensor_group);

  // Adds both layers to x, fp32 [L, D].
  void operator()(at::Tensor& x, const at::Tensor& bias) const;

  nn::RmsNorm attention_norm;
  T5Attention attention;
  nn::RmsNorm feed_forward_norm;
  T5FeedForward feed_forward;
  comm::Group tensor_group;
};

class T5Encoder {
 public:
  // Heads and feed-forward columns are split over `tensor_group`. Throws Error(kInput) for weights that are
  // missing or of another shape.
  T5Encoder(const weights::Scope& scope, const T5Config& config, const comm::Group& tensor_group);

  // ids (at least one) -> [L, D] in the dtype of the scope. Throws Error(kUsage) for an id outside the
  // vocabulary.
  at::Tensor operator()(at::ArrayRef<int64_t> ids) const;
  int64_t width() const { return config_.d_model; }

 private:
  T5Config config_;
  at::Tensor embedding_;      // [vocabulary, D] as it lies in the file: only rows are ever read
  at::Tensor relative_bias_;  // [buckets, H/tp]
  std::vector<T5Block> blocks_;
  nn::RmsNorm final_norm_;
};

class T5TextEncoder : public TextEncoder {
 public:
  T5TextEncoder(text::T5Tokenizer tokenizer, T5Encoder encoder);
  Conditioning encode(const std::string& prompt, int64_t max_length) const override;
  int64_t width() const override { return encoder_.width(); }

 private:
  text::T5Tokenizer tokenizer_;
  T5Encoder encoder_;
};

// From `model`/tokenizer and `model`/text_encoder.
std::unique_ptr<TextEncoder> load_t5_text_encoder(const std::filesystem::path& model,
                                                  const LoadOptions& options, LoadStatistics& statistics);

}  // namespace tessera::models
