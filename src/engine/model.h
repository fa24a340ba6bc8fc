// What a checkpoint in the diffusers folder format says about itself before any weight is loaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "core/json.h"
#include "models/family.h"

namespace tessera::engine {

struct Model {
  std::filesystem::path folder;  // holds model_index.json
  const models::Family* family = nullptr;
  std::shared_ptr<weights::SafetensorsFile> single_file;  // of all weights, where the folder has none
  JsonConfig scheduler;                                   // scheduler/scheduler_config.json
  int64_t scale_factor = 0;                               // pixels per latent row
  models::DenoiserShape shape;
  bool has_safety_checker = false;  // it is never run

  // That its user named.
  const std::filesystem::path& path() const { return single_file ? single_file->path() : folder; }
};

// model_index.json of the folder. Throws Error(kInput) when it is no folder that diffusers saved.
JsonConfig read_model_index(const std::filesystem::path& folder);

// Returns whether no family runs this part of model_index.json, such as the safety checker.
bool is_never_run(const std::string& part);

// Reads the JSON files. Throws Error(kInput) for a folder that diffusers did not save, a family that cannot
// run (listing those that can), and numbers that make no sense. `single_file`: weights come from there
// (weights/single_file.h).
Model read_model(const std::filesystem::path& folder,
                 const std::optional<std::filesystem::path>& single_file = std::nullopt);

// Builds every part on the meta device: finds each file, key, shape and dtype that is wrong, and parts that
// do not fit each other, without reading a weight, seconds before a run instead of minutes into it. Throws
// Error(kInput); warns as loading does.
void check_weights(const Model& model);

}  // namespace tessera::engine
