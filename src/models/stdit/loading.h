// Reads Open-Sora's transformers from the folder `transformer` of `model`, in the form in which
// hpcai-tech/OpenSora-STDiT-v2 and -v3 are published.
#pragma once

#include <filesystem>
#include <memory>

#include "models/family.h"

namespace tessera::models {

// Predicts noise and the range of the variance (samplers::Iddpm), twice as many channels as the latents have.
DenoiserShape read_stdit2_shape(const std::filesystem::path& model);
std::unique_ptr<Denoiser> load_stdit2(const std::filesystem::path& model, const LoadOptions& options,
                                      LoadStatistics& statistics);

// Predicts the velocity (samplers::RectifiedFlow), as many channels as the latents have.
DenoiserShape read_stdit3_shape(const std::filesystem::path& model);
std::unique_ptr<Denoiser> load_stdit3(const std::filesystem::path& model, const LoadOptions& options,
                                      LoadStatistics& statistics);

}  // namespace tessera::models
