// How ranks of this host affect each other: how much slower they compute together, and how long their
// messages take.
#pragma once

#include <c10/core/ScalarType.h>

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
  Link link;  // through shared memory, which ranks of a host use; without a bandwidth if there is only one
              // rank
};

// A rank failed, or a signal ended all.
struct RanksFailed {
  launch::Failure failure;
};

// Takes a line about what is measured next.
using Say = std::function<void(const std::string&)>;

// Measures with 1 to `ranks` ranks of `threads` threads each. Like the ranks of a run they are forks of this
// process, which must therefore not have computed before. What they compute is of `dtype`: the faster it is,
// the more ranks disturb each other. Takes about `seconds`. Throws RanksFailed.
RankFigures measure_ranks(int64_t ranks, int64_t threads, at::ScalarType dtype, int64_t cache_bytes,
                          double seconds, const Say& say);

}  // namespace tessera::plan
