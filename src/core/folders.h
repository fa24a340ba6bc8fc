// Folders of this program and of its user: where its code lies, beside which its models, machines and codecs
// are found, and where it keeps what it can make again.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

namespace tessera {

// Returns the path from which the program or the shared library that holds this code was loaded, without
// links, also if the file has been deleted or replaced since; empty if the system does not say.
std::filesystem::path own_path();

// Returns the folders under which things of Tessera may be installed, in the order of a search: that which
// TESSERA_PREFIX in the environment names, if it does, and the one that holds the folder of own_path().
std::vector<std::filesystem::path> install_prefixes();

// As the XDG base directory specification says: $XDG_CACHE_HOME/tessera or ~/.cache/tessera, and
// $XDG_STATE_HOME/tessera or ~/.local/state/tessera for what cannot be made again; nothing if neither
// variable is an absolute path. They need not exist.
std::optional<std::filesystem::path> cache_folder();
std::optional<std::filesystem::path> state_folder();

}  // namespace tessera
