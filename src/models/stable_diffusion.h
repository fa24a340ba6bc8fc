// The text encoders of Stable Diffusion 1.x, 2.x (arXiv:2112.10752) and XL (arXiv:2307.01952). The denoiser
// is models/unet_2d_condition.h.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "models/family.h"

namespace tessera::models {

// Loads the only CLIP encoder from `model`/tokenizer and `model`/text_encoder. It returns the states before
// the last clip_skip layers, after the final norm.
std::unique_ptr<TextEncoder> load_stable_diffusion_text_encoder(const std::filesystem::path& model,
                                                                const LoadOptions& options,
                                                                LoadStatistics& statistics);

// Load the two CLIP encoders from tokenizer and text_encoder, and from tokenizer_2 and text_encoder_2. They
// return the states before the last layer (and before the clip_skip layers ahead of it). Those whose class in
// model_index.json has a projection, one or both, return the pooled vector as well. If model_index.json does
// not name a first tokenizer and encoder, as in the refiner, only the second encoder exists, and it takes the
// first prompt, as in diffusers. An absent negative prompt becomes zeros if model_index.json requests it.
std::unique_ptr<TextEncoder> load_stable_diffusion_xl_text_encoder(const std::filesystem::path& model,
                                                                   const LoadOptions& options,
                                                                   LoadStatistics& statistics);
std::unique_ptr<TextEncoder> load_stable_diffusion_xl_text_encoder_2(const std::filesystem::path& model,
                                                                     const LoadOptions& options,
                                                                     LoadStatistics& statistics);

// Concatenates the tokens by channels; the first pooled vector counts. Throws Error(kInput) for encoders that
// take prompts of different lengths.
Conditioning join_stable_diffusion_xl(const std::vector<Conditioning>& parts, const std::string& where);

}  // namespace tessera::models
