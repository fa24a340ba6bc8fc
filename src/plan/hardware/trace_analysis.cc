#include "plan/hardware/trace_analysis.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "plan/views.h"

namespace tessera::plan {
namespace {

double real(int64_t value) {
  return static_cast<double>(value);
}

// How often an event happens.
struct Times {
  int64_t run = 0, step = 0;
};

Times times_of(const Event& event, int64_t traced_steps, int64_t steps) {
  const bool is_steady = event.phase == Phase::kDenoise && event.step == steady_step(traced_steps);
  return {times_in_run(event, traced_steps, steps), is_steady ? 1 : 0};
}

// Equal operators share a row.
void add_operator(std::vector<TracedOperator>& rows, TracedOperator one, const Times& times) {
  const auto same = [&](const TracedOperator& row) {
    return row.mapped == one.mapped && row.phase == one.phase && row.name == one.name &&
           row.role == one.role && row.output == one.output && row.inputs == one.inputs;
  };
  auto row = std::find_if(rows.begin(), rows.end(), same);
  if (row == rows.end()) row = rows.insert(rows.end(), std::move(one));
  row->count += times.run;
  row->step_count += times.step;
}

void add_collective(std::vector<TracedCollective>& rows, const Event& event,
                    const CollectiveEvent& collective, const Times& times, const Link& link) {
  const auto same = [&](const TracedCollective& row) {
    return row.phase == event.phase && row.axis == collective.axis && row.name == collective.name;
  };
  auto row = std::find_if(rows.begin(), rows.end(), same);
  if (row == rows.end())
    row = rows.insert(rows.end(), {.phase = event.phase, .axis = collective.axis, .name = collective.name});
  double received = 0;
  for (const Transfer& each : collective.receives) received += real(each.bytes);
  const double bytes = std::max(real(collective.bytes), received);
  row->count += times.run;
  row->step_count += times.step;
  row->bytes += bytes * real(times.run);
  row->step_bytes += bytes * real(times.step);
  row->seconds += (bytes / *link.bandwidth + link.latency) * real(times.run);
}

}  // namespace

double TraceAnalysis::computing(Phase phase) const {
  double seconds = 0;
  for (const TracedOperator& each : operators) seconds += each.phase == phase ? each.seconds() : 0;
  return seconds;
}

std::vector<std::string> obstacles_of(const Trace& trace, OperationCosts& costs) {
  std::set<std::string> names;
  for (const RankTrace& rank : trace.ranks) {
    const std::vector<std::string> roles = roles_of(rank);
    for (size_t i = 0; i < rank.events.size(); ++i) {
      for (const MappedWork* const mapped : costs.operators(rank, i)) {
        const std::string& name = std::get<OperationEvent>(rank.events[i].what).name;
        if (!mapped->mapping.fits()) names.insert(roles[i].empty() ? name : name + " " + roles[i]);
      }
    }
  }
  return {names.begin(), names.end()};
}

bool has_collectives(const RankTrace& rank) {
  return std::any_of(rank.events.begin(), rank.events.end(),
                     [](const Event& event) { return std::holds_alternative<CollectiveEvent>(event.what); });
}

TraceAnalysis analyze_trace(const Trace& trace, const RankTrace& rank, int64_t steps, OperationCosts& costs,
                            const std::optional<Link>& link) {
  TESSERA_CHECK((link && link->bandwidth) || !has_collectives(rank), "no bandwidth between devices");
  TraceAnalysis analysis;
  const std::vector<std::string> roles = roles_of(rank);
  for (size_t i = 0; i < rank.events.size(); ++i) {
    const Event& event = rank.events[i];
    const Times times = times_of(event, trace.traced_steps, steps);
    if (const auto* const operation = std::get_if<OperationEvent>(&event.what)) {
      bool is_first = true;
      for (const MappedWork* const mapped : costs.operators(rank, i)) {
        add_operator(analysis.operators,
                     {.phase = event.phase,
                      .name = operation->name,
                      .role = roles[i],
                      .inputs = operation->inputs,
                      .output = operation->output,
                      .flops = is_first ? operation->flops : 0,
                      .bytes = is_first ? operation->bytes : 0,
                      .mapped = mapped},
                     times);
        is_first = false;
      }
    } else if (const auto* const collective = std::get_if<CollectiveEvent>(&event.what)) {
      add_collective(analysis.collectives, event, *collective, times, *link);
    }
  }
  return analysis;
}

}  // namespace tessera::plan
