// Z-Image (arXiv:2511.22699) is a diffusion transformer whose blocks attend over picture and text as one
// sequence. Blocks of their own refine each of the two before. Weights and names: diffusers'
// ZImageTransformer2DModel.
//
// Both sequences are filled up to a multiple of 32 with learned tokens, to which all others attend. Those of
// the picture are no part of its grid; they come with the text: the other sequence of a sample is first the
// filling of the picture, then its text.
//
// Shapes: B samples, h x w latent size, n local tokens of N = (h / 2) * (w / 2), P tokens that fill them up,
// L tokens of a text with its filling, l local tokens of such a sequence, C width, D size of a head, T width
// of the timestep's embedding.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "core/json.h"
#include "models/family.h"
#include "models/local_blocks.h"
#include "nn/norm.h"
#include "nn/query_key_norm.h"
#include "nn/rotary.h"
#include "nn/tensor_parallel.h"
#include "ops/linear.h"
#include "weights/scope.h"

namespace tessera::models {

struct ZImageConfig {
  static constexpr int64_t kFilledTo = 32;  // sequences have a multiple of so many tokens

  // Reads transformer/config.json; Error(kInput) names an unsupported option.
  explicit ZImageConfig(const JsonConfig& json);

  int64_t in_channels, dim, n_layers, n_refiner_layers, n_heads, cap_feat_dim;
  double norm_eps, rope_theta, t_scale;
  bool qk_norm;
  std::vector<int64_t> axes_dims;  // features of a head for text and frames, rows, columns
  std::vector<int64_t> axes_lens;  // and how many positions each axis has

  int64_t depth() const { return dim / n_heads; }
  int64_t time_width() const;  // T
  // Most tokens of a text, which has positions of its own with its filling, and the picture one behind it.
  int64_t most_text() const;
  // The blocks that are divided: those that refine the picture, then those over both sequences.
  int64_t blocks() const { return n_refiner_layers + n_layers; }
};

struct ZImageAttention {
  // [B, s, H * D] of the tokens of one sequence, or of several, one after the other.
  using Attend = std::function<at::Tensor(const nn::QueriesKeysValues&)>;

  ZImageAttention(const weights::Scope& scope, const ZImageConfig& config);
  // x [B, s, C], angles [B, s, D / 2, 2] of its tokens.
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& angles, const Attend& attend) const;

  nn::ColumnParallel to_qkv;
  nn::RowParallel to_out;
  std::optional<nn::HeadNorm> norm_q, norm_k;
};

struct ZImageBlock {
  ZImageBlock(const weights::Scope& scope, const ZImageConfig& config, bool is_modulated);
  // Updates x [B, s, C]; `time` [1 or B, T] is read by blocks that are modulated.
  void operator()(at::Tensor& x, const at::Tensor& angles, const at::Tensor& time,
                  const ZImageAttention::Attend& attend) const;

  ZImageAttention attention;
  nn::ColumnParallel w1, w3;  // feed_forward
  nn::RowParallel w2;
  nn::RmsNorm attention_norm1, attention_norm2, ffn_norm1, ffn_norm2;
  std::optional<ops::Linear> adaLN_modulation;
};

class ZImageTransformer final : public Denoiser {
 public:
  ZImageTransformer(const weights::Scope& scope, const ZImageConfig& config, const LocalBlocks& local_blocks);

  std::unique_ptr<Forward> start(const ForwardInputs& inputs) const override;
  at::ScalarType dtype() const override { return dtype_; }
  int64_t conditioning_width() const override { return config_.cap_feat_dim; }
  // diffusers' pipeline adds what it calls the guidance scale to the positive branch, positive + g (positive
  // - negative), and has guidance above 0. So `scale` is g + 1, and rounding is that of diffusers.
  at::Tensor guide(const at::Tensor& negative, const at::Tensor& positive, double scale) const override;

 private:
  friend class ZImageForward;

  // Where the first block over both sequences is: what makes texts of the states of prompts.
  struct Texts {
    Texts(const weights::Scope& scope, const ZImageConfig& config);
    at::Tensor operator()(const at::Tensor& states, const ZImageConfig& config) const;  // -> [L, C]

    nn::RmsNorm norm;  // cap_embedder
    ops::Linear linear;
    at::Tensor pad_token;  // [1, C]
    std::vector<ZImageBlock> context_refiner;
  };
  // With the last block.
  struct FinalLayer {
    FinalLayer(const weights::Scope& scope, const ZImageConfig& config);
    ops::Linear linear, adaLN_modulation;
  };

  ZImageConfig config_;
  ops::Linear time_in_, time_out_;  // t_embedder, fp32
  ops::Linear x_embedder_;          // [C, in * 2 * 2]; only with the first block, as is the token
  at::Tensor x_pad_token_;          // [1, C]
  std::optional<Texts> texts_;
  Blocks<ZImageBlock> blocks_;
  std::optional<FinalLayer> final_layer_;
  at::ScalarType dtype_;
};

// Loads transformer/ of a diffusers folder.
DenoiserShape read_z_image_shape(const std::filesystem::path& model);
std::unique_ptr<Denoiser> load_z_image(const std::filesystem::path& model, const LoadOptions& options,
                                       LoadStatistics& statistics);

// Loads the text encoder of a diffusers folder: Qwen3, of which the denoiser takes the last hidden state but
// one.
std::unique_ptr<TextEncoder> load_z_image_text_encoder(const std::filesystem::path& model,
                                                       const LoadOptions& options,
                                                       LoadStatistics& statistics);

}  // namespace tessera::models
