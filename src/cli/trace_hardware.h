// `tessera analyze hardware TRACE`: how long a rank of a trace takes on a machine.
#pragma once

#include <optional>

#include "cli/analyze_arguments.h"
#include "plan/machine.h"

namespace tessera::cli {

// The link between devices that the arguments choose, with a bandwidth. Throws Error(kInput) when the machine
// has none.
plan::Link chosen_link(const AnalyzeArguments& arguments, const plan::Machine& machine);

// Prints the analysis. Throws Error for a file that is no trace, for a rank that it does not hold, and for a
// machine file that is wrong or lacks what the trace needs.
void print_trace_hardware(const AnalyzeArguments& arguments);

}  // namespace tessera::cli
