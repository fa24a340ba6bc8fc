// Runs `tessera analyze`.
#pragma once

#include "cli/analyze_arguments.h"

namespace tessera::cli {

// Prints the analysis. Throws Error(kInput) for a machine file that is wrong or lacks what is asked for.
void run_analyze(const AnalyzeArguments& arguments);

}  // namespace tessera::cli
