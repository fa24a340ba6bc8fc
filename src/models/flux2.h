// FLUX.2 is a diffusion transformer with double blocks, in which text and picture have weights of their own,
// followed by single blocks over both, in which one product makes queries, keys, values and the input of the
// feed-forward, and another one combines the results (arXiv:2302.05442). All blocks of a kind are modulated
// alike. Weights and names: diffusers' Flux2Transformer2DModel.
//
// It denoises latents in which blocks of 2 x 2 have already become channels (models/autoencoder_kl_flux2.h).
// All tokens have positions on four axes: those of the picture (0, row, column, 0), token i of the text (0,
// 0, 0, i). The text is not masked: all texts of a run have the same length, including their padding. Tokens
// of reference pictures go through all blocks like those of the picture, at positions (10 + 10 k, row,
// column, 0) for the k-th, but nothing is predicted for them.
//
// Shapes: B samples, n local tokens of the picture and of references, N all of these, R of references, L
// tokens of a text, l of them local, C width, D size of a head, F width of the feed-forward.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "core/json.h"
#include "models/family.h"
#include "models/local_blocks.h"
#include "nn/embeddings.h"
#include "nn/query_key_norm.h"
#include "nn/tensor_parallel.h"
#include "ops/linear.h"
#include "weights/scope.h"

namespace tessera::models {

struct Flux2Config {
  // Reads transformer/config.json; Error(kInput) names an unsupported option.
  explicit Flux2Config(const JsonConfig& json);

  int64_t in_channels, num_layers, num_single_layers, attention_head_dim, num_attention_heads;
  int64_t joint_attention_dim, timestep_guidance_channels;
  double mlp_ratio, rope_theta, eps;
  // Features of a head for frames, rows, columns and tokens of a text. Axes that are left out turn nothing.
  std::vector<int64_t> axes_dims_rope;
  bool guidance_embeds;

  int64_t width() const { return num_attention_heads * attention_head_dim; }  // C
  int64_t feed_forward_width() const;                                         // F
  int64_t blocks() const { return num_layers + num_single_layers; }
};

// Modulates the input and the output of a sublayer. fp32 [C], or [B, C] if samples differ.
struct Flux2Modulation {
  at::Tensor shift, scale, gate;
};

struct Flux2FeedForward {
  Flux2FeedForward(const weights::Scope& scope, const Flux2Config& config);
  at::Tensor operator()(const at::Tensor& x) const;  // [B, s, C]

  nn::ColumnParallel linear_in;
  nn::RowParallel linear_out;
};

// What a double block does with one of its two sequences.
struct Flux2Stream {
  // `scope`: the block.
  Flux2Stream(const weights::Scope& scope, const Flux2Config& config, bool is_text);
  // Turns x [B, s, C] and the angles [s, D / 2, 2] of its tokens into queries, keys and values.
  nn::QueriesKeysValues before(const at::Tensor& x, const at::Tensor& angles,
                               const Flux2Modulation& modulation) const;
  // Updates x with the result of attention for its tokens, [B, s, H * D], and then with the feed-forward.
  void after(at::Tensor& x, const at::Tensor& attended, const Flux2Modulation& of_attention,
             const Flux2Modulation& of_feed_forward) const;

  nn::ColumnParallel to_qkv;
  nn::RowParallel to_out;
  nn::HeadNorm norm_q, norm_k;
  Flux2FeedForward ff;
  double eps;
};

struct Flux2SingleBlock {
  Flux2SingleBlock(const weights::Scope& scope, const Flux2Config& config);

  nn::ColumnParallel to_qkv_mlp_proj;
  nn::RowParallel to_out;
  nn::HeadNorm norm_q, norm_k;
};

// A double block or a single one.
struct Flux2Block {
  // `scope`: the whole model.
  Flux2Block(const weights::Scope& scope, const Flux2Config& config, int64_t number);

  std::optional<Flux2Stream> image, text;
  std::optional<Flux2SingleBlock> single;
};

class Flux2Transformer final : public Denoiser {
 public:
  Flux2Transformer(const weights::Scope& scope, const Flux2Config& config, const LocalBlocks& local_blocks);

  std::unique_ptr<Forward> start(const ForwardInputs& inputs) const override;
  at::ScalarType dtype() const override { return dtype_; }
  int64_t conditioning_width() const override { return config_.joint_attention_dim; }

 private:
  friend class Flux2Forward;

  // Only with the first block.
  struct Embedders {
    Embedders(const weights::Scope& scope, const Flux2Config& config);
    ops::Linear x_embedder, context_embedder;
  };
  // Only with double blocks; the modulation of single blocks likewise.
  struct DoubleModulation {
    DoubleModulation(const weights::Scope& scope, const Flux2Config& config);
    ops::Linear image, text;
  };
  // Only with the last block.
  struct Output {
    Output(const weights::Scope& scope, const Flux2Config& config);
    ops::Linear norm_out, proj_out;
  };

  Flux2Config config_;
  nn::TimestepEmbedding timestep_embedder_;  // fp32, as is the embedding of the guidance scale
  std::optional<nn::TimestepEmbedding> guidance_embedder_;
  std::optional<Embedders> embedders_;
  std::optional<DoubleModulation> double_modulation_;
  std::optional<ops::Linear> single_modulation_;
  Blocks<Flux2Block> blocks_;
  std::optional<Output> output_;
  at::ScalarType dtype_;
};

// The exponent of the shift of noise levels (samplers::SamplerRun::mu) that diffusers' pipelines use for this
// model and this many tokens of the picture; it was fitted to runs of 10 and of 200 steps.
double flux2_mu(int64_t tokens, int64_t steps);

// Loads transformer/ of a diffusers folder.
DenoiserShape read_flux2_shape(const std::filesystem::path& model);
std::unique_ptr<Denoiser> load_flux2(const std::filesystem::path& model, const LoadOptions& options,
                                     LoadStatistics& statistics);

// Loads the text encoder of FLUX.2 klein (Qwen3) or of FLUX.2 dev (Mistral 3) from a diffusers folder. The
// denoiser takes three hidden states side by side.
std::unique_ptr<TextEncoder> load_flux2_klein_text_encoder(const std::filesystem::path& model,
                                                           const LoadOptions& options,
                                                           LoadStatistics& statistics);
std::unique_ptr<TextEncoder> load_flux2_dev_text_encoder(const std::filesystem::path& model,
                                                         const LoadOptions& options,
                                                         LoadStatistics& statistics);

}  // namespace tessera::models
