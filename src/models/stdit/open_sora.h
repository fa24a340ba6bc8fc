// Open-Sora 1.2 (arXiv:2412.20404): the parts of its folder besides the transformer.
#pragma once

#include <filesystem>
#include <memory>

#include "models/family.h"

namespace tessera::models {

// T5 for the prompts, and a learned text for the unconditional branch (Prompt::null_of), which must be
// encoded together with its prompt.
std::unique_ptr<TextEncoder> load_open_sora_text_encoder(const std::filesystem::path& model,
                                                         const LoadOptions& options,
                                                         LoadStatistics& statistics);

// Read from `vae`, in the form in which hpcai-tech/OpenSora-VAE-v1.2 is published.
LatentScale read_video_vae_scale(const std::filesystem::path& model, int64_t channels);
std::unique_ptr<Decoder> load_video_vae_decoder(const std::filesystem::path& model,
                                                const LoadOptions& options, LoadStatistics& statistics);
std::unique_ptr<Encoder> load_video_vae_encoder(const std::filesystem::path& model,
                                                const LoadOptions& options, LoadStatistics& statistics);

}  // namespace tessera::models
