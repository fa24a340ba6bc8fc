// What a checkpoint in the diffusers folder format says about itself before any weight is loaded.
#pragma once

#include <cstdint>
#include <filesystem>

#include "core/json.h"
#include "models/family.h"

namespace tessera::engine {

struct Model {
  std::filesystem::path folder;  // holds model_index.json
  const models::Family* family = nullptr;
  JsonConfig scheduler;      // scheduler/scheduler_config.json
  int64_t scale_factor = 0;  // pixels per latent row
  models::DenoiserShape shape;
};

// model_index.json of the folder. Throws Error(kInput) when it is no folder that diffusers saved.
JsonConfig read_model_index(const std::filesystem::path& folder);

// Reads the JSON files. Throws Error(kInput) for a folder that diffusers did not save, a family that cannot
// run (listing those that can), and numbers that make no sense.
Model read_model(const std::filesystem::path& folder);

// Builds every part on the meta device: finds each file, key, shape and dtype that is wrong, and parts that
// do not fit each other, without reading a weight, seconds before a run instead of minutes into it. Throws
// Error(kInput); warns as loading does.
void check_weights(const Model& model);

}  // namespace tessera::engine
