// Keeps traces on disk, so that the same inputs are not traced again. A cache that cannot be read or written
// is not an error, and damaged traces are made again.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "job/job.h"
#include "plan/trace.h"

namespace tessera::job {

// Returns everything that a trace depends on: the program, the processor, the memory and files of the model,
// the settings, the traced ranks, and whether it holds their graphs. Seeds and paths are not included.
std::string trace_inputs(const Job& job, const std::vector<int64_t>& ranks, bool keeps_graphs);

// Returns the trace that was made from these inputs, if it is kept; its settings are those of the run that
// made it.
std::optional<plan::Trace> read_kept_trace(const std::string& inputs);
// Keeps a trace, and removes the least recently used ones until all fit in 256 MiB.
void keep_trace(const std::string& inputs, const plan::Trace& trace);

}  // namespace tessera::job
