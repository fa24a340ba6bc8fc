// How stale the data that ranks see of each other may be in displaced patch parallelism (DistriFusion,
// arXiv:2402.19481).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/parallel_options.h"

namespace tessera::parallel {

using tessera::DisplacedMode;

// All modes with their names, in the order above.
std::vector<std::pair<std::string, DisplacedMode>> displaced_modes();
std::string mode_name(DisplacedMode mode);

struct Displacement {
  DisplacedMode mode = DisplacedMode::kCorrectedAsyncGn;
  int64_t warmup_steps = 4;  // the first steps of a run, which are synchronous
};

}  // namespace tessera::parallel
