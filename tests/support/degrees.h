// Short notations for the degrees of parallel methods, for tables of tests.
#pragma once

#include "parallel/layout.h"

namespace tessera::parallel {

inline ParallelOptions degrees(int64_t dp, bool cfg, int64_t pp, int64_t ring, int64_t ulysses, int64_t tp) {
  ParallelOptions options;
  options.data_parallel_degree = dp;
  options.use_cfg_parallel = cfg;
  options.pipefusion_parallel_degree = pp;
  options.ring_degree = ring;
  options.ulysses_degree = ulysses;
  options.tensor_parallel_degree = tp;
  return options;
}

}  // namespace tessera::parallel
