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

}  // namespace tessera::cli
