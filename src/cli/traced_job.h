// A run that is traced or planned instead of done.
#pragma once

#include "job/job.h"

namespace tessera::cli {

// Plans a job from shapes alone. Without prompts it has the longest that the model takes; the model may be
// the config.json of a denoiser alone, whose steps are then all of the run. Throws Error as job::plan_job()
// does.
job::Job traced_job(job::GenerateArguments arguments);

}  // namespace tessera::cli
