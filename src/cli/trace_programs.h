// `tessera trace --stablehlo`: programs in StableHLO, each beside its description (docs/stablehlo.md).
#pragma once

#include <cstdint>
#include <vector>

#include "cli/arguments.h"
#include "job/job.h"

namespace tessera::cli {

// Throws Error(kUsage) for an option of programs given without the option that it needs, and for an option of
// traces given with --stablehlo.
void require_options_of_programs(const TraceArguments& arguments);

// Writes the programs of these ranks, or with --sharding one for all ranks or for each stage. Prints their
// paths and, unless `arguments` are quiet, a line about each on standard error. Nothing is written before all
// paths are checked: an existing file is replaced by a description only if it is one. Throws Error(kUsage).
void write_programs(const TraceArguments& arguments, const job::Job& job, const std::vector<int64_t>& ranks);

}  // namespace tessera::cli
