// Z-Image (arXiv:2511.22699) is a diffusion transformer whose blocks attend over picture and text as one
// sequence. Before, separate blocks refine each of the two. Weights and names: diffusers'
// ZImageTransformer2DModel.
//
// Both sequences are filled up to a multiple of 32 with learned tokens, to which all others attend. Those of
// the picture do not belong to its grid but go with the text: the other sequence of a sample consists of the
// filling of the picture, followed by the text.
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
  static constexpr int64_t kFilledTo = 32;  // sequences are filled up to a multiple of this

  // Reads transformer/config.json; Error(kInput) names an unsupported option.
  explicit ZImageConfig(const JsonConfig& json);

  int64_t in_channels, dim, n_layers, n_refiner_layers, n_heads, cap_feat_dim;
  double norm_eps, rope_theta, t_scale;
  bool qk_norm;
  std::vector<int64_t> axes_dims;  // features of a head for text and frames, rows, columns
  std::vector<int64_t> axes_lens;  // Returns the maximum number of tokens of a text: positions must suffice
                                   // for the text with its filling, and for the picture one after it.

  int64_t depth() const { return dim / n_heads; }
  int64_t time_width() const;  // T
  // The blocks that are divided: those that refine the picture, followed by those over both sequences.
  int64_t most_text() const;
  // the number of positions on each axis
  int64_t blocks() const { return n_refiner_layers + n_layers; }
};

struct ZImageAttention {
  // Computes attention: [B, s, H * D] for the tokens of one sequence, or of several, one after the other.
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
  // Updates x [B, s, C]; modulated blocks read `time` [1 or B, T].
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
  // - negative), and guides if g is above 0. So `scale` is g + 1, and rounding is that of diffusers.
  at::Tensor guide(const at::Tensor& negative, const at::Tensor& positive, double scale) const override;

 private:
  friend class ZImageForward;

  // Held with the first block over both sequences: turns states of prompts into texts.
  struct Texts {
    Texts(const weights::Scope& scope, const ZImageConfig& config);
    at::Tensor operator()(const at::Tensor& states, const ZImageConfig& config) const;  // -> [L, C]

    nn::RmsNorm norm;  // cap_embedder
    ops::Linear linear;
    at::Tensor pad_token;  // [1, C]
    std::vector<ZImageBlock> context_refiner;
  };
  // Only with the last block.
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

// Loads the text encoder of a diffusers folder: Qwen3, whose second-to-last hidden state the denoiser takes.
std::unique_ptr<TextEncoder> load_z_image_text_encoder(const std::filesystem::path& model,
                                                       const LoadOptions& options,
                                                       LoadStatistics& statistics);

}  // namespace tessera::models
