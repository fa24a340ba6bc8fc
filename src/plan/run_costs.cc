#include "plan/run_costs.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "core/error.h"
#include "engine/request.h"

namespace tessera::plan {
namespace {

double real(int64_t value) {
  return static_cast<double>(value);
}

RankTime times(const RankTime& time, double factor) {
  return {.computing = time.computing * factor,
          .waiting = time.waiting * factor,
          .hidden = time.hidden * factor,
          .launching = time.launching * factor,
          .latency = time.latency * factor,
          .sending = time.sending * factor};
}

// By event, the bytes of weights that it is the first to use, in a text encoder whose blocks are read at use:
// such weights are not among those that the phase holds from its beginning.
std::vector<int64_t> bytes_read(const RankTrace& rank) {
  std::vector<int64_t> bytes(rank.events.size());
  std::set<std::string> seen;
  int64_t all = 0;
  for (size_t event = 0; event < bytes.size(); ++event) {
    const auto* const layer = std::get_if<OperationEvent>(&rank.events[event].what);
    if (rank.events[event].phase != Phase::kEncode || layer == nullptr || layer->name != "linear") continue;
    if (layer->inputs.size() < 2 || !seen.insert(layer->role).second) continue;
    bytes[event] = layer->inputs[1].bytes();
    all += bytes[event];
  }
  const bool stay = rank.weights_bytes.at(static_cast<size_t>(Phase::kEncode)) >= all;
  return stay ? std::vector<int64_t>(bytes.size()) : bytes;
}

// The bytes that the process uses for the first time at the beginning of a phase, for the whole phase.
std::vector<int64_t> bytes_first_used(const RankTrace& rank) {
  std::vector<int64_t> bytes(rank.events.size());
  int64_t most = 0;
  for (size_t event = 0; event < bytes.size(); ++event) {
    const Phase phase = rank.events[event].phase;
    if (event > 0 && phase == rank.events[event - 1].phase) continue;
    const int64_t peak = rank.peak_bytes(phase) - rank.weights_bytes.at(static_cast<size_t>(phase));
    bytes[event] = std::max<int64_t>(peak - most, 0);
    most = std::max(most, peak);
  }
  return bytes;
}

// The seconds of a rank in addition to those of its operations, by event.
std::vector<double> memory_seconds(const RankTrace& rank, const Machine& machine) {
  std::vector<double> seconds(rank.events.size());
  if (!machine.load_rates.empty()) {
    const std::vector<int64_t> read = bytes_read(rank);
    for (size_t event = 0; event < seconds.size(); ++event) {
      if (read[event] == 0) continue;
      const auto& layer = std::get<OperationEvent>(rank.events[event].what);
      const auto found = machine.load_rates.find(engine::dtype_name(layer.inputs[1].dtype));
      if (found != machine.load_rates.end()) seconds[event] += real(read[event]) / found->second;
    }
  }
  if (machine.first_use_rate) {
    const std::vector<int64_t> first = bytes_first_used(rank);
    for (size_t event = 0; event < seconds.size(); ++event)
      seconds[event] += real(first[event]) / *machine.first_use_rate;
  }
  return seconds;
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

Schedule schedule_of(const Trace& trace, OperationCosts& costs, const std::string& where,
                     const std::vector<size_t>& stands_for) {
  std::vector<std::vector<double>> seconds;
  std::vector<std::vector<WorkKind>> kinds;
  for (const RankTrace& rank : trace.ranks) {
    std::vector<double>& of_rank = seconds.emplace_back(memory_seconds(rank, costs.machine()));
    std::vector<WorkKind>& kinds_of_rank = kinds.emplace_back(rank.events.size(), WorkKind::kVector);
    for (size_t event = 0; event < of_rank.size(); ++event) {
      const auto operators = costs.operators(rank, event);
      for (const MappedWork* const each : operators) of_rank[event] += each->mapping.latency;
      if (!operators.empty()) kinds_of_rank[event] = work_kind(operators.front()->work);
    }
  }
  return make_schedule(trace, seconds, kinds, where, stands_for);
}

Costs costs_on(const Machine& machine, std::vector<Link> links, int64_t ranks) {
  Costs costs;
  // Ranks of one host slow each other down.
  if (!links.empty() && links.front().devices > 0) ranks = std::min(ranks, links.front().devices);
  for (const WorkKind kind : kAllWorkKinds)
    costs.factors[static_cast<size_t>(kind)] = 1 / machine.shared_speed(kind, ranks);
  costs.links = std::move(links);
  costs.launch = machine.launch;
  return costs;
}

std::vector<Link> links_of(const std::optional<Link>& link) {
  return link ? std::vector{*link} : std::vector<Link>{};
}

RunCosts run_costs(const Schedule& schedule, int64_t steps, const Costs& costs, const std::string& where) {
  const int64_t steady = steady_step(schedule.traced_steps);
  const int64_t repetitions = steps - schedule.traced_steps + 1;
  TESSERA_CHECK(repetitions > 0, "a run of {} steps, of which {} were traced", steps, schedule.traced_steps);
  const int64_t simulated = std::min(repetitions, kMostRepetitions);
  const Simulation simulation = simulate(schedule, simulated, costs, where);
  // The last of the simulated repetitions, which represent all others, and how often each happens.
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
