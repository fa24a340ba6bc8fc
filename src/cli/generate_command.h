// `tessera generate`.
#pragma once

#include "cli/arguments.h"

namespace tessera::cli {

// Paints, writes the files, and prints their paths on stdout. Throws Error and pipelines::Cancelled.
void run_generate(const GenerateArguments& arguments);

}  // namespace tessera::cli
