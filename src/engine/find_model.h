// Finds models by path or name.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera::engine {

// Names the model used when --model is left out.
inline constexpr const char* kDefaultModel = "shapes";

// Returns the folder that `--model` names: a path, or the name of a model that ships with the program.
// Shipped models are looked for in $TESSERA_MODELS and in shipped_folders(). Throws Error(kInput) when the
// default model is not found; a named folder need not exist.
std::filesystem::path find_model(const std::optional<std::string>& name);

// Returns the folders of the shipped models, by name. If several have the same name, find_model() takes the
// first.
std::vector<std::filesystem::path> shipped_models();

// Returns the folder of the config.json that `--model` names, directly or by its folder, in place of a whole
// model.
std::optional<std::filesystem::path> find_lone_part(const std::optional<std::string>& name);

struct ModelFiles {
  std::filesystem::path folder;                        // has configs and tokenizers, and the weights
  std::optional<std::filesystem::path> single_file{};  // if set, has the weights of all parts, or those of
                                                       // the denoiser
};
// Resolves `--model` and `--config`: a folder as above, or one .safetensors or .gguf file and the folder of
// its configs and tokenizers. Throws Error(kUsage) when one of the two is missing, and Error(kInput) for a
// file of weights in another format.
ModelFiles find_model_files(const std::optional<std::string>& model,
                            const std::optional<std::string>& config);

}  // namespace tessera::engine
