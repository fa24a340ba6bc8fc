// Describes a checkpoint in the diffusers folder format before any weight is loaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "engine/file_stamps.h"
#include "models/family.h"

namespace tessera::engine {

struct Model {
  std::filesystem::path folder;  // holds model_index.json
  const models::Family* family = nullptr;
  std::vector<models::PipelinePart> parts;           // of the family's, those that the model has
  std::shared_ptr<weights::TensorFile> single_file;  // see models::LoadOptions
  std::string variant;                               // of the weight files; see weights/checkpoint.h
  JsonConfig scheduler;  // scheduler/scheduler_config.json, of the class that model_index.json names
  models::LatentScale scale;
  models::DenoiserShape shape;
  bool has_safety_checker = false;  // it is never run
  bool is_distilled = false;        // Family::may_be_distilled
  FileStamps stamps;                // of the files in the folder at the time it was read

  bool has_part(const std::string& name) const;
  // Returns the text encoders that the model has, and the conditioning of a prompt made from the output of
  // each.
  std::vector<models::TextEncoderPart> text_encoders() const;
  models::Conditioning conditioning(const std::vector<models::Conditioning>& parts) const;

  // The path that the user gave.
  const std::filesystem::path& path() const { return single_file ? single_file->path() : folder; }
};

// Reads model_index.json of the folder. Throws Error(kInput) if diffusers did not save the folder.
JsonConfig read_model_index(const std::filesystem::path& folder);

// Returns whether no family runs this part of model_index.json, such as the safety checker.
bool is_never_run(const std::string& part);

// Reads the JSON files. Throws Error(kInput) for a folder that diffusers did not save, a family or a class of
// a component that cannot run (listing those that can), impossible numbers, and a variant that has no file.
// If `single_file` is given, the weights that it has are read from it (weights/single_file.h,
// weights/denoiser_file.h); a file of another model is refused.
Model read_model(const std::filesystem::path& folder,
                 const std::optional<std::filesystem::path>& single_file = std::nullopt,
                 const std::string& variant = {});

// Builds every component on the meta device. This finds every wrong file, key, shape and dtype, and
// components that do not fit each other, without reading a weight, within seconds instead of minutes into a
// run. Throws Error(kInput), and gives the same warnings as loading.
void check_weights(const Model& model);

}  // namespace tessera::engine
