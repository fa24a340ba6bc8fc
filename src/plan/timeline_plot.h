// The timeline of the ranks of a run on a page: as a machine would have them, and, of the recording of a run,
// beside it as they were.
#pragma once

#include <string>

#include "plan/costed_trace.h"

namespace tessera::plan {

// A plot of the denoiser. That of a recording has both timelines at one scale, from the begin of the first
// step on, and a table of the steps that are drawn. `costed` has a run.
std::string timeline_html(const CostedTrace& costed);

}  // namespace tessera::plan
