// Where what can be made again is kept.
#pragma once

#include <filesystem>
#include <optional>

namespace tessera {

// As the XDG base directory specification says: $XDG_CACHE_HOME/tessera or ~/.cache/tessera; nothing if
// neither variable is an absolute path. It need not exist.
std::optional<std::filesystem::path> cache_folder();

}  // namespace tessera
