// A run that is traced or planned instead of done.
#pragma once

#include "job/job.h"
#include "plan/trace.h"

namespace tessera::job {

// Plans a job from shapes alone. Without prompts, it takes the longest prompt that the model accepts. The
// model may be the config.json of a denoiser alone; the run then consists only of its steps. Throws Error as
// plan_job() does.
Job traced_job(GenerateArguments arguments);

// Returns the trace of a job without its ranks, which plan::trace_rank() traces one by one.
plan::Trace trace_without_ranks(const Job& job);

}  // namespace tessera::job
