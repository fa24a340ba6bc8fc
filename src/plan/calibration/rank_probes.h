// What ranks of this host do to each other: how much slower they compute together, and how long their
// messages take.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "launch/failure.h"
#include "plan/efficiency.h"
#include "plan/link.h"

namespace tessera::plan {

struct RankFigures {
  // The share of its speed that a rank keeps while 1, 2, ... ranks compute, by kind of work.
  std::map<WorkKind, std::vector<double>> sharing;
  Link
      link;  // of the shared memory, by which ranks of a host send; without bandwidth where there is one rank
};

// A rank that failed, or a signal that ended all.
struct RanksFailed {
  launch::Failure failure;
};

// Takes a line on what is measured next.
using Say = std::function<void(const std::string&)>;

// Measures with 1 to `ranks` ranks of `threads` threads each, which are forks of this process as those of a
// run are: so it must not have computed before. Takes about `seconds`. Throws RanksFailed.
RankFigures measure_ranks(int64_t ranks, int64_t threads, int64_t cache_bytes, double seconds,
                          const Say& say);

}  // namespace tessera::plan
