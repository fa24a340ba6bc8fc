// Describes a model of which only the denoiser's config.json is there. It says what a step computes; what
// other parts would say takes the defaults of the family.
#pragma once

#include <filesystem>

#include "engine/model.h"

namespace tessera::engine {

// `folder` holds config.json. The model has the denoiser as its only part. Throws Error(kInput) for a config
// of anything but a denoiser that can run here.
Model read_lone_denoiser(const std::filesystem::path& folder);

}  // namespace tessera::engine
