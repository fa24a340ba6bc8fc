// Stable Diffusion 1.x, 2.x (arXiv:2112.10752) and XL (arXiv:2307.01952): what their prompts become. The
// denoiser is models/unet_2d_condition.h.
#pragma once

#include <filesystem>
#include <memory>

#include "models/family.h"

namespace tessera::models {

// One CLIP encoder: the states after the layer that clip_skip leaves last, through the final norm. From
// `model`/tokenizer and `model`/text_encoder.
std::unique_ptr<TextEncoder> load_stable_diffusion_text_encoder(const std::filesystem::path& model,
                                                                const LoadOptions& options,
                                                                LoadStatistics& statistics);

// Two CLIP encoders, each with a prompt of its own: the states before the last layer (and those that
// clip_skip leaves out) side by side, and the pooled vector of the first that has a projection, as
// model_index.json names its class. From tokenizer, tokenizer_2,
// text_encoder and text_encoder_2. An absent negative prompt is zeros where model_index.json says so.
std::unique_ptr<TextEncoder> load_stable_diffusion_xl_text_encoder(const std::filesystem::path& model,
                                                                   const LoadOptions& options,
                                                                   LoadStatistics& statistics);

}  // namespace tessera::models
