// What a run costs on a machine: the simulation of its ranks with the costs of their operations. Everything
// that estimates times uses this.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/hardware/operation_costs.h"
#include "plan/schedule.h"
#include "plan/simulation.h"

namespace tessera::plan {

// A phase of a run, or equal steps of its denoiser.
struct RunPart {
  Phase phase = Phase::kDenoise;
  int64_t step = 0;    // among the traced ones
  int64_t times = 1;   // in the run
  double seconds = 0;  // for one of them, from when the last rank has finished the previous part
};

struct RankCosts {
  int64_t rank = 0;
  RankTime run{}, step{};  // for the whole run, and for one steady step
  double end = 0;          // of the run, on this rank
};

struct RunCosts {
  double seconds = 0;          // of the whole run
  double step_seconds = 0;     // of a steady step
  std::vector<RunPart> parts;  // in the order of the program; their times add up to that of the run
  std::vector<RankCosts> ranks;

  double phase_seconds(Phase phase) const;
  // The rank that computes longest, as an index into `ranks`, and its time divided by the mean.
  size_t busiest() const;
  double imbalance() const;
};

// The largest number of repetitions of the steady step that are simulated. In longer runs, each further one
// takes the mean time of the later half of these: by then, the advantage that the first ranks have at the
// start of a pipeline is gone.
inline constexpr int64_t kMostRepetitions = 16;

// What ranks do on a machine (plan/schedule.h). `where` is for errors.
Schedule schedule_of(const Trace& trace, OperationCosts& costs, const std::string& where,
                     const std::vector<size_t>& stands_for = {});

// The costs of the machine and its links, from `links` on, when this many ranks compute at once. `links` may
// be empty if ranks exchange nothing.
Costs costs_on(const Machine& machine, std::vector<Link> links, int64_t ranks);

std::vector<Link> links_of(const std::optional<Link>& link);

// A run of `steps` steps. Operators that fit with no split take no time. Throws Error(kInput) as simulate()
// does.
RunCosts run_costs(const Schedule& schedule, int64_t steps, const Costs& costs, const std::string& where);

}  // namespace tessera::plan
