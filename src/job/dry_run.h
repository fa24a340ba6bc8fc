// `tessera generate --dry-run`: shows what would run.
#pragma once

#include "job/job.h"

namespace tessera::job {

// Prints JSON on stdout: `settings` as a report has them, which with_files() reads, `outputs` (paths),
// `world_size`, and `weights_bytes` (of each component of the model in the dtypes of the run; for the
// denoiser, the share of the rank that holds most; reordered copies that the CPU's kernels hold do not
// count). `memory_bytes` has the memory that all ranks need, by phase (plan/memory_need.h). Prints the same
// headline on stderr as a run. Reads configurations and the headers of weights, and throws Error for what is
// wrong with them.
void print_plan(const Job& job, const FieldSpelling& spelling);

}  // namespace tessera::job
