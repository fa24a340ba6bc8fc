// Where models lie.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace tessera::cli {

// The model that is used when --model is left out.
inline constexpr const char* kDefaultModel = "shapes";

// The folder that `--model` names: a path, or the name of a model that ships with the program. Those are
// searched in $TESSERA_MODELS, beside the installed program (../share/tessera/models) and in the source tree
// of a build (../models). Throws Error(kInput) when the default model is nowhere; a named folder need not
// exist.
std::filesystem::path find_model(const std::optional<std::string>& name);

struct ModelFiles {
  std::filesystem::path folder;                        // configs and tokenizers, and weights unless
  std::optional<std::filesystem::path> single_file{};  // all of them are here
};
// What `--model` and `--config` name: a folder as above, or one .safetensors file and the folder of its
// configs and tokenizers. Throws Error(kUsage) when one of the two is missing, Error(kInput) for
// files that are no .safetensors.
ModelFiles find_model_files(const std::optional<std::string>& model,
                            const std::optional<std::string>& config);

}  // namespace tessera::cli
