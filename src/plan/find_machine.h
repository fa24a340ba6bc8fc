// Finds machine files by path or name.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "plan/machine.h"

namespace tessera::plan {

// Returns the file that `--machine` names: a path (with a '/' or the ending .json), or a machine that ships,
// which is searched in $TESSERA_MACHINES, ../share/tessera/machines and ../machines. Throws Error(kInput) for
// a name that is none of those; a file need not exist.
std::filesystem::path find_machine(const std::string& name);

// Returns the names of the machines that ship, sorted.
std::vector<std::string> shipped_machines();

// Reads the machine in a file or of a name. A device that ships with several links also has the name
// DEVICE-LINK, such as l40-pcie: its devices are then joined by that link. Throws Error(kInput).
Machine read_named_machine(const std::string& name);

}  // namespace tessera::plan
