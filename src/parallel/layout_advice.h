// Finds the valid degrees that are nearest to a wish that breaks rules.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "parallel/options.h"
#include "parallel/workload.h"

namespace tessera::parallel {

// Returns one or two: the nearest degrees with the methods of the wish, unless a launcher has fixed the
// number of ranks (`world_size`), and the nearest degrees for the largest number of ranks, at most as many,
// for which there are any. They satisfy all rules of degrees; other options are those of the wish. All
// degrees of the wish must be in range.
std::vector<ParallelOptions> nearest_valid(const ParallelOptions& wish, const Workload& workload,
                                           std::optional<int64_t> world_size);

}  // namespace tessera::parallel
