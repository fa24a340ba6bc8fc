#include "plan/run_costs.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace tessera::plan {
namespace {

double real(int64_t value) {
  return static_cast<double>(value);
}

RankTime times(const RankTime& time, double factor) {
  return {time.computing * factor, time.waiting * factor, time.hidden * factor};
}

}  // namespace

double RunCosts::phase_seconds(Phase phase) const {
  double sum = 0;
  for (const RunPart& part : parts) sum += part.phase == phase ? part.seconds * real(part.times) : 0;
  return sum;
}

size_t RunCosts::busiest() const {
  const auto found = std::max_element(ranks.begin(), ranks.end(), [](const RankCosts& a, const RankCosts& b) {
    return a.run.computing < b.run.computing;
  });
  return static_cast<size_t>(found - ranks.begin());
}

double RunCosts::imbalance() const {
  double sum = 0;
  for (const RankCosts& rank : ranks) sum += rank.run.computing;
  return sum > 0 ? ranks[busiest()].run.computing * static_cast<double>(ranks.size()) / sum : 1;
}

std::vector<std::vector<double>> event_seconds(const Trace& trace, OperationCosts& costs) {
  std::vector<std::vector<double>> seconds;
  for (const RankTrace& rank : trace.ranks) {
    std::vector<double>& of_rank = seconds.emplace_back(rank.events.size());
    for (size_t event = 0; event < of_rank.size(); ++event) of_rank[event] = costs.seconds(rank, event);
  }
  return seconds;
}

Simulation simulate_run(const Trace& trace, int64_t repetitions, OperationCosts& costs,
                        const std::optional<Link>& link, const std::string& where) {
  return simulate(trace, repetitions,
                  {.seconds = event_seconds(trace, costs),
                   .bandwidth = link && link->bandwidth ? *link->bandwidth : 1,
                   .latency = link ? link->latency : 0},
                  where);
}

RunCosts run_costs(const Trace& trace, int64_t steps, OperationCosts& costs, const std::optional<Link>& link,
                   const std::string& where) {
  const int64_t steady = steady_step(trace.traced_steps);
  const int64_t repetitions = steps - trace.traced_steps + 1;
  TESSERA_CHECK(repetitions > 0, "a run of {} steps, of which {} were traced", steps, trace.traced_steps);
  const int64_t simulated = std::min(repetitions, kMostRepetitions);
  const Simulation simulation = simulate_run(trace, simulated, costs, link, where);
  // The last of those that are simulated, which stand for all that are not, and how often each happens.
  const int64_t measured = std::max<int64_t>(simulated / 2, 1);
  const double weight = 1 + real(repetitions - simulated) / real(measured);

  RunCosts run;
  for (const RankTimeline& timeline : simulation.ranks) run.ranks.emplace_back().rank = timeline.rank;
  double end = 0, steady_seconds = 0, beyond = 0, count = 0;
  for (const auto& [part, simulated_part] : simulation.parts) {
    const bool is_steady = part.phase == Phase::kDenoise && part.step == steady;
    const bool is_measured = is_steady && part.repetition >= simulated - measured;
    const double seconds = std::max(simulated_part.end - end, 0.0);
    end = std::max(end, simulated_part.end);
    for (size_t i = 0; i < run.ranks.size(); ++i) {
      run.ranks[i].run += times(simulated_part.ranks[i], is_measured ? weight : 1);
      if (is_measured) run.ranks[i].step += simulated_part.ranks[i];
    }
    if (is_measured) {
      beyond += seconds * (weight - 1);
      run.step_seconds += seconds;
      ++count;
    }
    steady_seconds += is_steady ? seconds * (is_measured ? weight : 1) : 0;
    if (is_steady && part.repetition + 1 < simulated) continue;
    run.parts.push_back({.phase = part.phase,
                         .step = part.step,
                         .times = is_steady ? repetitions : 1,
                         .seconds = is_steady ? steady_seconds / real(repetitions) : seconds});
    if (is_steady) steady_seconds = 0;
  }
  run.seconds = end + beyond;
  run.step_seconds /= std::max(count, 1.0);
  for (size_t i = 0; i < run.ranks.size(); ++i) {
    run.ranks[i].step = times(run.ranks[i].step, 1 / std::max(count, 1.0));
    run.ranks[i].end = simulation.ranks[i].end + beyond;
  }
  return run;
}

}  // namespace tessera::plan
