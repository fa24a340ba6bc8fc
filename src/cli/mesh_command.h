// Runs `tessera mesh`.
#pragma once

#include "cli/arguments.h"

namespace tessera::cli {

// Prints the groups of each axis and the coordinates of each rank. Throws Error(kUsage) when the product of
// the degrees is not --world.
void run_mesh(const MeshArguments& arguments);

}  // namespace tessera::cli
