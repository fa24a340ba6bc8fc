// `tessera analyze hardware TRACE...`: how long the ranks of traces take on a machine.
#pragma once

#include <optional>

#include "cli/analyze_arguments.h"
#include "plan/machine.h"
#include "plan/trace.h"

namespace tessera::cli {

// The link between devices that the arguments choose, with a bandwidth. Throws Error(kInput) when the machine
// has none.
plan::Link chosen_link(const AnalyzeArguments& arguments, const plan::Machine& machine);

// The steps of the run that is estimated: those of the arguments, or of the trace. Throws Error(kUsage) for
// fewer than were traced.
int64_t chosen_steps(const AnalyzeArguments& arguments, const plan::Trace& trace, const std::string& path);

// Prints the analysis of a trace, or a table of several. Throws Error for a file that is no trace, for a rank
// that it does not hold, and for a machine file that is wrong or lacks what the trace needs.
void print_trace_hardware(const AnalyzeArguments& arguments);

}  // namespace tessera::cli
