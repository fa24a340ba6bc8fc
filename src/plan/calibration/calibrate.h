// A machine file from measurements: what the processor of this host does in how long, by the operations of
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

// The processor as its ranks see it. A device is what a rank computes on: a tile for each of its threads.
struct HostFigures {
  std::string name, source;
  int64_t threads = 1;
  double tile_bytes = 0;                           // of the cache that a core has for itself
  double cache_bandwidth = 0, dram_bandwidth = 0;  // bytes/s, read and written
  double memory_bytes = 0;                         // of the host
  std::map<std::string, double> load_rates = {};   // see Machine
  double first_use_rate = 0;
  int64_t ranks = 1;       // that share it
  int64_t operations = 0;  // that were to be timed, of which a busy host leaves no time for some
  RankFigures of_ranks;
};

// The file. Its rates are the best of what was timed, and its shares make the mappers of hardware/mapping.h
// give each time that was. `timed` has a product and a vector operator of each of its dtypes.
OrderedJson machine_json(const HostFigures& host, const std::vector<TimedWork>& timed);

// Of what is measured and how. A file of another version does not stand for this host.
inline constexpr int kCalibrationVersion = 3;

// As the kernel names it.
std::string processor_name();

// The dtypes in which networks compute here: fp32, and bf16 where the processor multiplies it.
std::vector<at::ScalarType> host_dtypes();

struct CalibrationOptions {
  int64_t threads = 1;  // of a rank
  int64_t ranks = 1;    // that compute at once, at most
  std::vector<at::ScalarType> dtypes = {at::kFloat};
  double seconds = 90;  // of the whole; what is typical is measured in any case
};

// Measures, and returns machine_json(). Computes, so this process must not have done so before. Throws as
// measure_ranks() does.
OrderedJson calibrate(const CalibrationOptions& options, const Say& say);

}  // namespace tessera::plan
