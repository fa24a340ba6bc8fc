// Short notations for the degrees of parallel methods, for tables of tests.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "core/error.h"
#include "parallel/layout.h"

namespace tessera::parallel {

inline ParallelOptions degrees(int64_t dp, bool cfg, int64_t pp, int64_t ring, int64_t ulysses, int64_t tp,
                               int64_t gather = 1) {
  ParallelOptions options;
  options.data_parallel_degree = dp;
  options.use_cfg_parallel = cfg;
  options.pipefusion_parallel_degree = pp;
  options.ring_degree = ring;
  options.kv_gather_degree = gather;
  options.ulysses_degree = ulysses;
  options.tensor_parallel_degree = tp;
  return options;
}

// The line with which a layout is refused; empty if it is not.
inline std::string refusal(const ParallelOptions& options, const Workload& workload,
                           std::optional<int64_t> world = std::nullopt) {
  try {
    resolve_layout(options, workload, world);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "";
}

}  // namespace tessera::parallel
