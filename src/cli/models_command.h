// `tessera models`.
#pragma once

#include "cli/arguments.h"

namespace tessera::cli {

// Prints what is in a checkpoint and whether it can run, or, without a model, those that ship. Returns 0 when
// it can, 3 when not. Throws Error(kInput) when the folder is no checkpoint at all.
int run_models(const ModelsArguments& arguments);

}  // namespace tessera::cli
