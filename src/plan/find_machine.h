// Finds machine files by path or name.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "plan/machine.h"

namespace tessera::plan {

// Returns the file that `--machine` names: a path (with a '/' or the ending .json), or the name of a machine
// that ships, which is looked for in $TESSERA_MACHINES, ../share/tessera/machines and ../machines. Throws
// Error(kInput) for an unknown name; a file need not exist.
std::filesystem::path find_machine(const std::string& name);

// Returns the names of the machines that ship, sorted.
std::vector<std::string> shipped_machines();

// Reads a machine from a file or by name. A device that ships with several links also has the name
// DEVICE-LINK, such as l40-pcie, in which its devices are joined by that link. Throws Error(kInput).
Machine read_named_machine(const std::string& name);

}  // namespace tessera::plan
