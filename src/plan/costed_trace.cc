#include "plan/costed_trace.h"

#include <algorithm>
#include <map>

#include "plan/views.h"

namespace tessera::plan {
namespace {

using Unit = Table::Column::Unit;

OrderedJson cell(const std::optional<double>& number) {
  return number ? OrderedJson(*number) : OrderedJson();
}

std::string part_name(const RunPart& part, int64_t traced_steps) {
  if (part.phase != Phase::kDenoise) return phase_name(part.phase);
  if (part.step == kBeforeSteps) return "before the steps";
  if (part.step == traced_steps) return "after the steps";
  if (part.step == steady_step(traced_steps)) return traced_steps == 1 ? "steps" : "steady steps";
  return part.step < traced_steps - 1 ? fmt::format("step {}", part.step + 1) : "last step";
}

Sum most(const Sum& a, const Sum& b) {
  return {std::max(a.step, b.step), std::max(a.run, b.run)};
}

bool needs_link(const Trace& trace) {
  return std::any_of(trace.ranks.begin(), trace.ranks.end(), has_collectives);
}

}  // namespace

std::optional<double> CostedTrace::seconds() const {
  return run && obstacles.empty() ? std::optional(run->seconds) : std::nullopt;
}

const RankTrace& CostedTrace::busiest() const {
  return run ? trace->ranks[run->busiest()] : trace->ranks.front();
}

CostedTrace cost_trace(std::string name, const Trace& trace, int64_t steps,
                       std::shared_ptr<OperationCosts> costs, std::optional<Link> link) {
  CostedTrace costed{.name = std::move(name),
                     .trace = &trace,
                     .steps = steps,
                     .costs = std::move(costs),
                     .link = std::move(link),
                     .run = {},
                     .obstacles = {}};
  if (!costed.costs) return costed;
  costed.obstacles = obstacles_of(trace, *costed.costs);
  const bool has_all = static_cast<int64_t>(trace.ranks.size()) == trace.world_size;
  if (has_all && (costed.link || !needs_link(trace)))
    costed.run =
        run_costs(schedule_of(trace, *costed.costs, costed.name), steps,
                  costs_on(costed.costs->machine(), links_of(costed.link), trace.world_size), costed.name);
  return costed;
}

Table comparison_table(const std::vector<CostedTrace>& traces) {
  Table table({{"trace", "trace"},
               {"world_size", "ranks"},
               {"num_inference_steps", "steps"},
               {"total_seconds", "run", Unit::kSeconds},
               {"step_seconds", "a step", Unit::kSeconds},
               {"computing_seconds", "computing", Unit::kSeconds},
               {"waiting_seconds", "waiting", Unit::kSeconds},
               {"overlap_seconds", "overlap", Unit::kSeconds},
               {"imbalance", "imbalance", Unit::kRatio},
               {"step_flops", "GFLOP/step", Unit::kGiga},
               {"flops", "GFLOP/run", Unit::kGiga},
               {"step_sent", "sent/step", Unit::kBytes},
               {"sent", "sent/run", Unit::kBytes},
               {"peak", "memory", Unit::kBytes}});
  for (const CostedTrace& costed : traces) {
    Sum sent, flops;
    int64_t peak = 0;
    const RunSteps steps{costed.trace->traced_steps, costed.steps};
    for (const RankTrace& rank : costed.trace->ranks) {
      sent = most(sent, sent_bytes(rank, steps));
      flops = most(flops, all_flops(rank, steps));
      peak = std::max(peak, rank.peak_bytes());
    }
    std::vector<OrderedJson> row = {costed.name, costed.trace->world_size, costed.steps,
                                    cell(costed.seconds())};
    if (costed.run) {
      const RankCosts& busiest = costed.run->ranks[costed.run->busiest()];
      const bool is_whole = costed.obstacles.empty();
      row.insert(row.end(),
                 {is_whole ? OrderedJson(costed.run->step_seconds) : OrderedJson(), busiest.run.computing,
                  busiest.run.waiting, busiest.run.hidden, costed.run->imbalance()});
    } else {
      row.insert(row.end(), 5, nullptr);
    }
    row.insert(row.end(), {flops.step, flops.run, sent.step, sent.run, peak});
    table.add(std::move(row));
  }
  return table;
}

Table parts_table(const CostedTrace& costed) {
  Table table({{"phase", "phase"},
               {"part", "part"},
               {"count", "times"},
               {"each_seconds", "each", Unit::kSeconds},
               {"seconds", "in all", Unit::kSeconds},
               {"share", "share", Unit::kShare}});
  for (const RunPart& part : costed.run->parts) {
    const double seconds = part.seconds * static_cast<double>(part.times);
    table.add({phase_name(part.phase), part_name(part, costed.trace->traced_steps), part.times, part.seconds,
               seconds, costed.run->seconds > 0 ? seconds / costed.run->seconds : 0});
  }
  return table;
}

Table ranks_table(const CostedTrace& costed) {
  Table table({{"rank", "rank"},
               {"computing_seconds", "computing", Unit::kSeconds},
               {"waiting_seconds", "waiting", Unit::kSeconds},
               {"overlap_seconds", "overlap", Unit::kSeconds},
               {"end_seconds", "end", Unit::kSeconds},
               {"busy", "busy", Unit::kShare},
               {"step_computing_seconds", "computing/step", Unit::kSeconds},
               {"step_waiting_seconds", "waiting/step", Unit::kSeconds},
               {"step_overlap_seconds", "overlap/step", Unit::kSeconds},
               {"peak", "memory", Unit::kBytes}});
  for (size_t i = 0; i < costed.run->ranks.size(); ++i) {
    const RankCosts& rank = costed.run->ranks[i];
    table.add({rank.rank, rank.run.computing, rank.run.waiting, rank.run.hidden, rank.end,
               costed.run->seconds > 0 ? rank.run.computing / costed.run->seconds : 0, rank.step.computing,
               rank.step.waiting, rank.step.hidden, costed.trace->ranks[i].peak_bytes()});
  }
  return table;
}

std::vector<std::pair<std::string, double>> bounds_of(const CostedTrace& costed) {
  std::map<std::string, double> seconds;
  const TraceAnalysis analysis =
      analyze_trace(*costed.trace, costed.busiest(), costed.steps, *costed.costs, costed.link);
  for (const TracedOperator& each : analysis.operators) {
    if (each.step_count > 0 && each.mapped->mapping.fits())
      seconds[roof_name(each.mapped->mapping.roof)] += each.step_seconds();
  }
  if (costed.run) seconds["waiting for ranks"] = costed.run->ranks[costed.run->busiest()].step.waiting;
  std::vector<std::pair<std::string, double>> bounds(seconds.begin(), seconds.end());
  std::erase_if(bounds, [](const auto& bound) { return bound.second <= 0; });
  std::stable_sort(bounds.begin(), bounds.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return bounds;
}

}  // namespace tessera::plan
