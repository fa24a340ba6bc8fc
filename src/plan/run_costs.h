// What a run costs on a machine: the simulation of its ranks with the costs of their operations. All views
// that estimate times take them from here.
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

// What ranks do on a machine (plan/schedule.h). `where` is for errors.
Schedule schedule_of(const Trace& trace, OperationCosts& costs, const std::string& where,
                     const std::vector<size_t>& stands_for = {});

// What the machine and its links, from `links` on, make of it where so many ranks compute at once. `links`
// may be empty if ranks exchange nothing.
Costs costs_on(const Machine& machine, std::vector<Link> links, int64_t ranks);

std::vector<Link> links_of(const std::optional<Link>& link);

// A run of `steps` steps. Operators of which no split fits take no time. Throws Error(kInput) as simulate()
// does.
RunCosts run_costs(const Schedule& schedule, int64_t steps, const Costs& costs, const std::string& where);

}  // namespace tessera::plan
