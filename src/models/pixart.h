// PixArt-alpha (arXiv:2310.00426) and PixArt-Sigma (arXiv:2403.04692) are diffusion transformers with
// cross-attention to the prompt and one adaptive layer norm that all blocks share. Weights and names:
// diffusers' PixArtTransformer2DModel.
//
// Shapes: B samples, h x w latent size, p patch size, n local tokens of N = (h / p) * (w / p), L tokens of a
// prompt, C width, D size of a head.
#pragma once

#include <filesystem>
#include <vector>

#include "core/json.h"
#include "models/family.h"
#include "models/local_blocks.h"
#include "nn/cross_attention.h"
#include "nn/embeddings.h"
#include "nn/tensor_parallel.h"
#include "ops/linear.h"
#include "weights/scope.h"

namespace tessera::models {

struct PixArtConfig {
  explicit PixArtConfig(
      const JsonConfig& json);  // reads transformer/config.json; Error(kInput) names an unsupported option

  int64_t num_attention_heads, attention_head_dim, num_layers;
  int64_t in_channels, out_channels, sample_size, patch_size;
  int64_t cross_attention_dim, caption_channels;  // caption_channels 0 means no caption projection
  double interpolation_scale, norm_eps;
  bool attention_bias;
  bool use_additional_conditions;  // embeds resolution and aspect ratio (alpha at sample size 128)

  int64_t width() const { return num_attention_heads * attention_head_dim; }
};

struct PixArtSelfAttention {
  PixArtSelfAttention(const weights::Scope& scope, const PixArtConfig& config);
  at::Tensor operator()(const at::Tensor& x, nn::Tokens& tokens) const;  // [B, n, C]

  nn::ColumnParallel to_qkv;
  nn::RowParallel to_out;
  int64_t depth;
};

struct PixArtBlock {
  PixArtBlock(const weights::Scope& scope, const PixArtConfig& config);

  // Updates x [B, n, C] in place. modulation is the step's, fp32 [6, C]; prompts comes from
  // attn2.keys_values().
  void operator()(at::Tensor& x, const at::Tensor& modulation, const std::vector<at::Tensor>& prompts,
                  at::ArrayRef<int64_t> prompt_of, nn::Tokens& tokens) const;

  PixArtSelfAttention attn1;
  nn::CrossAttention attn2;
  nn::ColumnParallel ff_in;
  nn::RowParallel ff_out;
  at::Tensor scale_shift_table;  // [6, C] fp32
  double norm_eps;
};

class PixArtTransformer final : public Denoiser {
 public:
  PixArtTransformer(const weights::Scope& scope, const PixArtConfig& config, const LocalBlocks& local_blocks);

  std::unique_ptr<Forward> start(const ForwardInputs& inputs) const override;
  at::ScalarType dtype() const override { return dtype_; }
  int64_t conditioning_width() const override {
    return config_.caption_channels > 0 ? config_.caption_channels : config_.cross_attention_dim;
  }

  // Embeds the picture's size in pixels, fp32 [1, C]; undefined without additional conditions.
  at::Tensor size_embedding(const LatentShape& latent_shape) const;

 private:
  friend class PixArtForward;

  PixArtConfig config_;
  ops::Linear patch_proj_;                   // [C, in * p * p]; only with the first block
  nn::TimestepEmbedding timestep_embedder_;  // fp32
  std::optional<nn::TimestepEmbedding> resolution_embedder_, aspect_ratio_embedder_;  // fp32
  ops::Linear adaln_linear_;                                                          // fp32
  std::optional<ops::Linear> caption_linear_1_, caption_linear_2_;
  Blocks<PixArtBlock> blocks_;
  at::Tensor scale_shift_table_;  // [2, C] fp32; only with the last block
  ops::Linear proj_out_;          // only the rows that predict noise, not variance; only with the last block
  at::ScalarType dtype_;
};

// Loads transformer/ of a diffusers folder.
DenoiserShape read_pixart_shape(const std::filesystem::path& model);
std::unique_ptr<Denoiser> load_pixart(const std::filesystem::path& model, const LoadOptions& options,
                                      LoadStatistics& statistics);

// Returns the training size of the released models that is nearest in aspect ratio, for sample sizes 32, 64,
// 128 and 256 (256, 512, 1024 and 2048 pixels); nothing for other sample sizes.
std::optional<std::pair<int64_t, int64_t>> pixart_bin_resolution(int64_t height, int64_t width,
                                                                 int64_t sample_size);

}  // namespace tessera::models
