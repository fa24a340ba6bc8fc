// The timeline of the ranks of a run on a page: as predicted for a machine, and, for the recording of a run,
// the actual one beside it.
#pragma once

#include <string>

#include "plan/costed_trace.h"

namespace tessera::plan {

// A plot of the denoiser. For a recording, it has both timelines at the same scale, starting with the first
// step, and a table of the drawn steps. `costed` has a run.
std::string timeline_html(const CostedTrace& costed);

}  // namespace tessera::plan
