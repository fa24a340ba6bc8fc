// How old what ranks see of each other may be in displaced patch parallelism (DistriFusion,
// arXiv:2402.19481).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tessera::parallel {

// What is old in a step after the synchronous first ones, beside border rows, keys and values.
enum class DisplacedMode {
  kFullSync,          // nothing: every step is synchronous
  kSyncGn,            // moments of norms are fresh
  kCorrectedAsyncGn,  // they are old, moved by as much as the own part's have moved
  kStaleGn,           // they are old but for the own part's share
  kSeparateGn,        // they are the own part's
  kNoSync,            // likewise, and the rest stays as the last synchronous step left it
};

// With their names, in that order.
std::vector<std::pair<std::string, DisplacedMode>> displaced_modes();
std::string mode_name(DisplacedMode mode);

struct Displacement {
  DisplacedMode mode = DisplacedMode::kCorrectedAsyncGn;
  int64_t warmup_steps = 4;  // synchronous ones, the first of a run
};

}  // namespace tessera::parallel
