// Describes a model of which only the denoiser's config.json exists. The config determines what a step
// computes; whatever other parts would determine takes the defaults of the family.
#pragma once

#include <filesystem>

#include "engine/model.h"

namespace tessera::engine {

// `folder` holds config.json. The model has the denoiser as its only part. Throws Error(kInput) for a config
// of anything but a denoiser that is supported.
Model read_lone_denoiser(const std::filesystem::path& folder);

}  // namespace tessera::engine
