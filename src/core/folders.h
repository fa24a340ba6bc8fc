// Folders of this program and of its user: where its code is, near which its models, machines and codecs are
// found, and where it keeps files that it can recreate.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

namespace tessera {

// Returns the path from which the program or the shared library that contains this code was loaded, with
// links resolved, even if the file has since been deleted or replaced; empty if the system does not provide
// it.
std::filesystem::path own_path();

// Returns the folders under which parts of Tessera may be installed, in search order: the one named by the
// environment variable TESSERA_PREFIX, if set, and the one that contains the folder of own_path().
std::vector<std::filesystem::path> install_prefixes();

// Following the XDG base directory specification: $XDG_CACHE_HOME/tessera or ~/.cache/tessera, and
// $XDG_STATE_HOME/tessera or ~/.local/state/tessera for files that cannot be recreated; nothing if neither
// variable is an absolute path. The folders need not exist.
std::optional<std::filesystem::path> cache_folder();
std::optional<std::filesystem::path> state_folder();

}  // namespace tessera
