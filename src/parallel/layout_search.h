// Lists the wishes for a number of ranks that break no rule.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "parallel/options.h"
#include "parallel/workload.h"

namespace tessera::parallel {

// Calls `visit` with every way to write `ranks` as a product of degrees, each at most `most(degree)`,
// together with the other options of `wish`. Guidance parallelism is tried if it divides `ranks`, first as in
// `wish`.
void for_each_product(const ParallelOptions& wish, int64_t ranks,
                      const std::function<int64_t(const Degree&)>& most,
                      const std::function<void(const ParallelOptions&)>& visit);

struct SearchOptions {
  bool stale = true;  // also PipeFusion with several patches, and displaced patches
};

// Every valid wish for this many ranks that differs in what ranks do: all products of degrees, 1d and 2d
// tensor parallelism, DSP and Ulysses if the model supports both, and for PipeFusion one, two and four
// patches per stage and both axes of a video. Everything else is left to resolve_layout().
std::vector<ParallelOptions> valid_wishes(const Workload& workload, int64_t ranks,
                                          const SearchOptions& options);

}  // namespace tessera::parallel
