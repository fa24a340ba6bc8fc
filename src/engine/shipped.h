// Folders of the models and machines that ship with the program.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tessera::engine {

// Returns the folders in which things of a kind ("models") are looked for, in order: the folder that the
// environment variable names, and under each of install_prefixes() share/tessera/models, where they are
// installed, and models, where the source tree has them.
std::vector<std::filesystem::path> shipped_folders(const std::string& kind, const char* variable);

}  // namespace tessera::engine
