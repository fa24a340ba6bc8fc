#include "plan/planner/server_plan.h"

#include <algorithm>
#include <utility>

#include "plan/planner/queue.h"

namespace tessera::plan {
namespace {

using Unit = Table::Column::Unit;

constexpr double kQuantile = 0.95;

void add_times(WorldsPlan& choice, double rate) {
  if (rate >= choice.capacity()) return;
  const DeterministicQueue queue(choice.worlds, choice.planned.prediction.seconds, rate);
  choice.mean_seconds = queue.mean_seconds();
  choice.p95_seconds = queue.quantile_seconds(kQuantile);
}

}  // namespace

double ServerPlan::most_capacity() const {
  double most = 0;
  for (const WorldsPlan& each : choices) most = std::max(most, each.capacity());
  return most;
}

ServerPlan make_server_plan(const engine::Settings& settings, const engine::Model& model,
                            const Machine& machine, const std::vector<Link>& links,
                            const PlanOptions& options, double rate,
                            const std::function<bool()>& interrupted) {
  ServerPlan plan;
  for (int64_t devices = options.devices; devices >= 1; --devices) {
    if (options.devices % devices != 0) continue;
    PlanOptions of_world = options;
    of_world.devices = devices;
    of_world.count = 1;
    of_world.uses_all = true;
    of_world.compares = false;
    of_world.busy_devices = options.devices;
    Plan found = make_plan(settings, model, machine, links, of_world, interrupted);
    plan.considered += found.considered;
    plan.costed += found.costed;
    if (found.best.empty()) {
      const bool is_nearest =
          found.least_memory && (!plan.least_memory || found.least_memory->prediction.most_bytes() <
                                                           plan.least_memory->prediction.most_bytes());
      if (is_nearest) plan.least_memory = std::move(found.least_memory);
      continue;
    }
    WorldsPlan& choice = plan.choices.emplace_back();
    choice.worlds = options.devices / devices;
    choice.devices = devices;
    choice.planned = std::move(found.best.front());
    add_times(choice, rate);
    if (choice.p95_seconds && (!plan.best || *choice.p95_seconds < *plan.choices[*plan.best].p95_seconds))
      plan.best = plan.choices.size() - 1;
  }
  return plan;
}

Table server_table(const ServerPlan& plan, double rate) {
  Table table({{"worlds", "worlds"},
               {"devices", "devices"},
               {"layout", "layout"},
               {"service_seconds", "a request", Unit::kSeconds},
               {"capacity_per_minute", "most/minute"},
               {"load", "load", Unit::kShare},
               {"mean_seconds", "mean", Unit::kSeconds},
               {"p95_seconds", "p95", Unit::kSeconds},
               {"peak_bytes", "memory", Unit::kBytes},
               {"exact", "result"}});
  const auto or_null = [](const std::optional<double>& value) {
    return value ? OrderedJson(*value) : OrderedJson();
  };
  constexpr double kSecondsOfMinute = 60;
  for (const WorldsPlan& each : plan.choices) {
    const Prediction& prediction = each.planned.prediction;
    table.add({each.worlds, each.devices, each.planned.name, prediction.seconds,
               fmt::format("{:.4g}", each.capacity() * kSecondsOfMinute), rate / each.capacity(),
               or_null(each.mean_seconds), or_null(each.p95_seconds), prediction.most_bytes(),
               prediction.is_exact ? "exact" : "stale"});
  }
  return table;
}

}  // namespace tessera::plan
