// PixArt-alpha (arXiv:2310.00426) and PixArt-Sigma (arXiv:2403.04692): a diffusion transformer with
// cross-attention to the prompt and one adaptive layer norm shared by all blocks. Weights and names:
// diffusers' PixArtTransformer2DModel.
//
// Legend: B samples, h x w latent size, p patch size, S tokens of this rank in the patches at hand ((h/p) *
// (w/p) on one rank), L tokens of a prompt, C width, H/tp heads of this rank of the tensor groups, D size of
// a head.
#pragma once

#include <filesystem>
#include <vector>

#include "core/json.h"
#include "models/family.h"
#include "nn/embeddings.h"
#include "nn/self_attention.h"
#include "nn/tensor_parallel.h"
#include "ops/linear.h"
#include "weights/scope.h"

namespace tessera::models {

struct PixArtConfig {
  explicit PixArtConfig(
      const JsonConfig& json);  // transformer/config.json; Error(kInput) names what cannot run

  int64_t num_attention_heads, attention_head_dim, num_layers;
  int64_t in_channels, out_channels, sample_size, patch_size;
  int64_t cross_attention_dim, caption_channels;  // caption_channels 0: no caption projection
  double interpolation_scale, norm_eps;
  bool use_additional_conditions;  // resolution and aspect ratio (alpha at sample size 128)

  int64_t width() const { return num_attention_heads * attention_head_dim; }
};

// Keys and values of one prompt in one block: [1, L, 2 * H/tp * D], keys first.
using PromptKeysValues = std::vector<at::Tensor>;

struct PixArtAttention {
  PixArtAttention() = default;
  // Self-attention when `context_dim` is 0: q, k and v are then one product.
  PixArtAttention(const weights::Scope& scope, const PixArtConfig& config, int64_t context_dim,
                  const comm::TensorGroups& groups);

  nn::ColumnParallel to_q, to_kv, to_qkv;
  nn::RowParallel to_out;
  int64_t heads = 0;  // H/tp
};

// What a step, or the run, gives to every block.
struct PixArtStep {
  at::Tensor modulation;  // [6, C] fp32
  at::ArrayRef<int64_t> prompt_of;
  Range patches;
};

struct PixArtBlock {
  PixArtBlock(const weights::Scope& scope, const PixArtConfig& config, const comm::TensorGroups& groups);

  // x [B, S, C] in place; prompts[prompt_of[b]] [1, L, 2 * H/tp * D]. `layer` is the block's number in the
  // stage.
  void operator()(at::Tensor& x, const PixArtStep& step, const PromptKeysValues& prompts, int64_t layer,
                  nn::SelfAttention& self_attention) const;

  PixArtAttention attn1, attn2;
  nn::ColumnParallel ff_in;
  nn::RowParallel ff_out;
  at::Tensor scale_shift_table;  // [6, C] fp32
  double norm_eps;
};

class PixArtTransformer : public Denoiser {
 public:
  // `blocks`: the stage that is read.
  PixArtTransformer(const weights::Scope& scope, const PixArtConfig& config, const Range& blocks,
                    const comm::TensorGroups& groups);

  struct PixArtContext : Context {
    explicit PixArtContext(const parallel::TokenCut& cut) : self_attention(cut) {}
    at::Tensor positions;                       // [rows, columns, C] of the picture
    at::Tensor size_embedding;                  // [1, C] fp32, or undefined without additional conditions
    std::vector<PromptKeysValues> keys_values;  // [block][prompt]
    nn::SelfAttention self_attention;
  };

  std::unique_ptr<Context> prepare(const std::vector<Conditioning>& prompts,
                                   const Canvas& canvas) const override;
  at::Tensor run_stage(const at::Tensor& x, double timestep, at::ArrayRef<int64_t> prompt_of, Range patches,
                       Context& context) const override;
  int64_t hidden_width() const override { return config_.width(); }
  at::ScalarType dtype() const override { return dtype_; }
  int64_t latent_channels() const override { return config_.in_channels; }
  int64_t conditioning_width() const override {
    return config_.caption_channels > 0 ? config_.caption_channels : config_.cross_attention_dim;
  }
  int64_t patch_size() const override { return config_.patch_size; }
  int64_t sample_size() const override { return config_.sample_size; }

 private:
  // The parts of a forward pass, in the order in which data passes through them.
  at::Tensor embed(const at::Tensor& z, Range patches,
                   const PixArtContext& context) const;  // [B, in, h, w] -> [B, S, C]
  at::Tensor time_embedding(double timestep, const PixArtContext& context) const;  // [1, C] fp32
  at::Tensor head(const at::Tensor& x, const at::Tensor& time,
                  int64_t columns) const;  // -> [B, in, h, w] fp32

  bool is_first() const { return stage_.begin == 0; }
  bool is_last() const { return stage_.end() == config_.num_layers; }

  PixArtConfig config_;
  Range stage_;                              // blocks
  ops::Linear patch_proj_;                   // [C, in * p * p], first stage
  nn::TimestepEmbedding timestep_embedder_;  // fp32
  std::optional<nn::TimestepEmbedding> resolution_embedder_, aspect_ratio_embedder_;  // fp32
  ops::Linear adaln_linear_;                                                          // fp32
  std::optional<ops::Linear> caption_linear_1_, caption_linear_2_;
  std::vector<PixArtBlock> blocks_;
  at::Tensor scale_shift_table_;  // [2, C] fp32
  ops::Linear proj_out_;          // only the rows that predict noise, not variance; last stage
  at::ScalarType dtype_;
};

// Reads transformer/ of a diffusers folder.
DenoiserShape read_pixart_shape(const std::filesystem::path& model);
std::unique_ptr<Denoiser> load_pixart(const std::filesystem::path& model, const LoadOptions& options,
                                      LoadStatistics& statistics);

// The size nearest in aspect ratio that the released models were trained on, for sample sizes 32, 64, 128 and
// 256 (256, 512, 1024 and 2048 pixels); the given size for others.
std::pair<int64_t, int64_t> pixart_bin_resolution(int64_t height, int64_t width, int64_t sample_size);

}  // namespace tessera::models
