// How stale the data may be that ranks see of each other in displaced patch parallelism (DistriFusion,
// arXiv:2402.19481).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tessera::parallel {

// What is stale in the steps after the synchronous ones. In all modes but kFullSync, halo rows, keys and
// values are.
enum class DisplacedMode {
  kFullSync,          // nothing: every step is synchronous
  kSyncGn,            // the moments of group norms are fresh
  kCorrectedAsyncGn,  // moments are stale, corrected by the change of this rank's own moments
  kStaleGn,           // moments are stale, except for this rank's own share
  kSeparateGn,        // each rank uses only its own moments
  kNoSync,            // like kSeparateGn; all else stays as of the last synchronous step
};

// All modes with their names, in the order above.
std::vector<std::pair<std::string, DisplacedMode>> displaced_modes();
std::string mode_name(DisplacedMode mode);

struct Displacement {
  DisplacedMode mode = DisplacedMode::kCorrectedAsyncGn;
  int64_t warmup_steps = 4;  // the first steps of a run, which are synchronous
};

}  // namespace tessera::parallel
