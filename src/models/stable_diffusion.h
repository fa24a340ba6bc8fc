// Encodes prompts for Stable Diffusion 1.x, 2.x (arXiv:2112.10752) and XL (arXiv:2307.01952). The denoiser is
// models/unet_2d_condition.h.
#pragma once

#include <filesystem>
#include <memory>

#include "models/family.h"

namespace tessera::models {

// Loads one CLIP encoder from `model`/tokenizer and `model`/text_encoder. It returns the states before the
// last clip_skip layers, through the final norm.
std::unique_ptr<TextEncoder> load_stable_diffusion_text_encoder(const std::filesystem::path& model,
                                                                const LoadOptions& options,
                                                                LoadStatistics& statistics);

// Loads two CLIP encoders from tokenizer, tokenizer_2, text_encoder and text_encoder_2; each may have a
// separate prompt. They return the states before the last layer (and before the clip_skip layers ahead of
// it), concatenated by channels, and the pooled vector of the first that has a projection, as
// model_index.json names its class. Where that names no first tokenizer and encoder, as of the refiner, there
// is the second alone, and it takes the first prompt, as in diffusers. An absent negative prompt becomes
// zeros where model_index.json says so.
std::unique_ptr<TextEncoder> load_stable_diffusion_xl_text_encoder(const std::filesystem::path& model,
                                                                   const LoadOptions& options,
                                                                   LoadStatistics& statistics);

}  // namespace tessera::models
