// The U-Net of Stable Diffusion 1.x, 2.x (arXiv:2112.10752) and XL (arXiv:2307.01952). Weights and names:
// diffusers' UNet2DConditionModel.
//
// Shapes: B samples, C channels, h x W local rows and columns at a level, L tokens of a prompt, D its width.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "core/json.h"
#include "models/family.h"
#include "models/resnet_block_2d.h"
#include "models/transformer_2d.h"
#include "nn/embeddings.h"

namespace tessera::models {

struct UNet2DConfig {
  explicit UNet2DConfig(
      const JsonConfig& json);  // reads unet/config.json; Error(kInput) names an unsupported option

  // Holds what differs between levels; the finest level comes first.
  struct Level {
    int64_t channels = 320, layers = 2, heads = 8, context_width = 768;
    int64_t down_transformers = 0, up_transformers = 0;  // layers of each transformer; 0 means no attention
  };
  std::vector<Level> levels;
  bool has_mid_block;
  int64_t mid_transformers, mid_heads;
  int64_t in_channels, out_channels, sample_size, norm_groups;
  double norm_eps;
  bool use_linear_projection;
  // SDXL is conditioned on sizes and pooled text. This is the width of the embedding of each of its six
  // numbers; 0 if the model has no such input.
  int64_t addition_time_embed_dim, addition_inputs;
  // Latent consistency models (arXiv:2310.04378) take the guidance scale as an input. This is the width of
  // its embedding; 0 if the model has no such input.
  int64_t time_cond_proj_dim;

  int64_t embedding_channels() const { return 4 * levels.front().channels; }
  int64_t context_width() const { return levels.front().context_width; }
  int64_t pooled_width() const { return addition_inputs - 6 * addition_time_embed_dim; }
};

// A resnet, followed by a transformer if the level has attention.
struct UNetLayer {
  ResnetBlock2D resnet;
  std::optional<Transformer2DModel> attention;
};

class UNet2DConditionModel final : public Denoiser {
 public:
  UNet2DConditionModel(const weights::Scope& scope, const UNet2DConfig& config);

  std::unique_ptr<Forward> start(const ForwardInputs& inputs) const override;
  at::ScalarType dtype() const override { return dtype_; }
  int64_t conditioning_width() const override { return config_.context_width(); }
  int64_t pooled_width() const override { return config_.pooled_width(); }

 private:
  friend class UNetForward;

  struct Down {
    std::vector<UNetLayer> layers;
    std::optional<nn::Conv2d> downsampler;
  };
  struct Up {
    std::vector<UNetLayer> layers;
    std::optional<nn::UpsampleToScale2d> upsampler;
  };

  UNet2DConfig config_;
  nn::Conv2d conv_in_;
  nn::TimestepEmbedding time_embedding_;                // fp32
  std::optional<nn::TimestepEmbedding> add_embedding_;  // fp32
  std::vector<Down> down_blocks_;                       // by level
  std::vector<UNetLayer> mid_block_;                    // may be empty
  std::vector<Up> up_blocks_;                           // the coarsest level first
  ops::GroupNorm conv_norm_out_;
  nn::Conv2d conv_out_;
  at::ScalarType dtype_;
};

DenoiserShape unet_shape(const UNet2DConfig& config);
// Loads unet/ of a diffusers folder.
DenoiserShape read_unet_shape(const std::filesystem::path& model);
// The same as StableDiffusionPipeline reads it: the first files of Stable Diffusion did not store a size, so
// a size below 64 in a file from before diffusers 0.9 counts as 64.
DenoiserShape read_stable_diffusion_shape(const std::filesystem::path& model);
std::unique_ptr<Denoiser> load_unet(const std::filesystem::path& model, const LoadOptions& options,
                                    LoadStatistics& statistics);
// Loads from the folder unet/ itself.
std::unique_ptr<Denoiser> load_unet_folder(const std::filesystem::path& folder, const LoadOptions& options,
                                           LoadStatistics& statistics);

}  // namespace tessera::models
