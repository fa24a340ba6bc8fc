// Runs `tessera compare`.
#pragma once

#include "cli/arguments.h"

namespace tessera::cli {

const Fields<CompareArguments>& compare_fields();  // beside the sizes

// Prints what each parallel method makes a rank send, hold and compute (plan/comparison.h). Throws
// Error(kUsage) for sizes whose results are too large.
void run_compare(const CompareArguments& arguments);

}  // namespace tessera::cli
