// `tessera trace --stablehlo`: programs in StableHLO, each beside its description (docs/stablehlo.md).
#pragma once

#include <cstdint>
#include <vector>

#include "cli/arguments.h"
#include "job/job.h"

namespace tessera::cli {

// Throws Error(kUsage) for an option of programs that lacks the one that it needs, and for one of traces
// beside --stablehlo.
void require_options_of_programs(const TraceArguments& arguments);

// Writes the programs of these ranks, or with --sharding one for all ranks or for each stage; prints their
// paths, and a line on each to standard error unless `arguments` are quiet. Nothing is written before all
// paths are checked: a file in the place of a description is replaced only if it is one. Throws
// Error(kUsage).
void write_programs(const TraceArguments& arguments, const job::Job& job, const std::vector<int64_t>& ranks);

}  // namespace tessera::cli
