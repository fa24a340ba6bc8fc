// What a run costs on a machine: the simulation of its ranks with the costs of their operations. All views
// that estimate times take them from here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/hardware/operation_costs.h"
#include "plan/simulation.h"

namespace tessera::plan {

// A phase of a run, or equal steps of its denoiser.
struct RunPart {
  Phase phase = Phase::kDenoise;
  int64_t step = 0;    // of the traced ones
  int64_t times = 1;   // in the run
  double seconds = 0;  // of one; from when the last rank is through with what is before
};

struct RankCosts {
  int64_t rank = 0;
  RankTime run{}, step{};  // of the whole run, and of one steady step
  double end = 0;          // of the run on this rank
};

struct RunCosts {
  double seconds = 0;          // of the whole run
  double step_seconds = 0;     // of a steady step
  std::vector<RunPart> parts;  // in the order of the program; they add up to the run
  std::vector<RankCosts> ranks;

  double phase_seconds(Phase phase) const;
  // The rank that computes longest, as an index of `ranks`, and its time over the mean of all.
  size_t busiest() const;
  double imbalance() const;
};

// The most repetitions of the steady step that are simulated. A run with more of them takes, for each, the
// mean time of the later half of these: what the first ranks gain at the begin of a pipeline is gone by then.
inline constexpr int64_t kMostRepetitions = 16;

// Returns the time of each event of each rank, by rank of the trace.
std::vector<std::vector<double>> event_seconds(const Trace& trace, OperationCosts& costs);

// A run of `steps` steps. Operators of which no split fits take no time. `link` must have a bandwidth if
// ranks exchange anything. Throws Error(kInput) as simulate() does.
RunCosts run_costs(const Trace& trace, int64_t steps, OperationCosts& costs, const std::optional<Link>& link,
                   const std::string& where);

// The simulation below run_costs(), of a run whose steady step happens so often.
Simulation simulate_run(const Trace& trace, int64_t repetitions, OperationCosts& costs,
                        const std::optional<Link>& link, const std::string& where);

}  // namespace tessera::plan
