// The configuration of STDiT, the diffusion transformers of Open-Sora (arXiv:2412.20404).
#pragma once

#include <cstdint>

#include "core/json.h"

namespace tessera::models {

struct STDiTConfig {
  explicit STDiTConfig(
      const JsonConfig& json);  // reads config.json; Error(kInput) names an unsupported option

  int64_t depth, hidden_size, num_heads, in_channels;
  int64_t caption_channels, model_max_length;
  int64_t stored_text_length;  // of the learned text in the checkpoint; model_max_length if unknown
  int64_t input_sq_size;       // side in pixels of the images for which positions are not scaled
  int64_t mlp_width;
  bool pred_sigma;      // whether the prediction includes a variance
  bool qk_norm;         // whether queries and keys are normalised
  bool qk_norm_legacy;  // after the rotation instead of before it

  int64_t head_dim() const { return hidden_size / num_heads; }
  int64_t out_channels() const { return pred_sigma ? 2 * in_channels : in_channels; }
};

}  // namespace tessera::models
