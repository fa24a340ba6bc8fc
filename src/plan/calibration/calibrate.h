// Makes a machine file from measurements of how long the processor of this host takes for the operations of
// this program.
#pragma once

#include <ATen/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/json.h"
#include "plan/calibration/rank_probes.h"
#include "plan/hardware/operator.h"

namespace tessera::plan {

// Work that was timed.
struct TimedWork {
  std::string dtype;
  Work work;
  double seconds = 0;
};

// The processor as its ranks see it. A device is what a rank computes on, with a tile for each of its
// threads.
struct HostFigures {
  std::string name, source;
  int64_t threads = 1;
  double tile_bytes = 0;                           // the cache that a core has for itself
  double cache_bandwidth = 0, dram_bandwidth = 0;  // bytes/s, read and written
  double memory_bytes = 0;                         // of the host
  std::map<std::string, double> load_rates = {};   // see Machine
  double first_use_rate = 0;
  int64_t ranks = 1;       // the number that share it
  int64_t operations = 0;  // the number to be timed, some of which a busy host may leave no time for
  RankFigures of_ranks;
};

// Returns the file. Its rates are the best that were timed, and with its shares the mappers of
// hardware/mapping.h reproduce each timed value. `timed` has a product and a vector operator for each of its
// dtypes.
OrderedJson machine_json(const HostFigures& host, const std::vector<TimedWork>& timed);

// The version of what is measured and how. A file of another version cannot be used for this host.
inline constexpr int kCalibrationVersion = 4;

// As the kernel names it.
std::string processor_name();

// The dtypes in which networks compute here: fp32, and bf16 where the processor multiplies it.
std::vector<at::ScalarType> host_dtypes();

struct CalibrationOptions {
  int64_t threads = 1;  // of a rank
  int64_t ranks = 1;    // the largest number that compute at once
  std::vector<at::ScalarType> dtypes = {at::kFloat};
  double seconds = 90;  // in total; typical operations are measured in any case
};

// Measures, and returns machine_json(). This computes, and the process must not have computed before. Throws
// as measure_ranks() does.
OrderedJson calibrate(const CalibrationOptions& options, const Say& say);

}  // namespace tessera::plan
