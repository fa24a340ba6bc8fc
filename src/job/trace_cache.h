// Keeps traces on disk: what the same inputs made before is read again. A cache that cannot be read or
// written is no error, and what is damaged in it is made anew.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "job/job.h"
#include "plan/trace.h"

namespace tessera::job {

// All that a trace depends on: the program, the processor, the memory and files of the model, the settings,
// the ranks that are traced, and whether it holds their graphs. Seeds and paths have no part in it.
std::string trace_inputs(const Job& job, const std::vector<int64_t>& ranks, bool keeps_graphs);

// Returns the trace that these inputs made, if it is kept; its settings are those of the run that made it.
std::optional<plan::Trace> read_kept_trace(const std::string& inputs);
// Keeps a trace and removes those that were not used for longest, until all fit in 256 MiB.
void keep_trace(const std::string& inputs, const plan::Trace& trace);

}  // namespace tessera::job
