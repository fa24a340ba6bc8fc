// `tessera generate --dry-run`: shows what would run.
#pragma once

#include "job/job.h"

namespace tessera::job {

// Prints JSON on stdout: `settings` as a report has them, which with_files() reads, `outputs` (paths),
// `world_size`, and `weights_bytes`: of each component of the model in the dtypes of the run, of the denoiser
// the share of the rank that holds most. (What the CPU's kernels hold beside them, reordered, does not
// count.) `memory_bytes` has the need of all ranks by phase (plan/memory_need.h). A
// line on stderr says the same as that of a run. Reads configurations and the headers of weights, and throws
// Error for what is wrong with them.
void print_plan(const Job& job, const FieldSpelling& spelling);

}  // namespace tessera::job
