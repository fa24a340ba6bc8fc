// How the devices of a server are best dealt to worlds, each of which does one request at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "plan/planner/planner.h"

namespace tessera::plan {

// So many worlds of equal ranks, in the layout that does a request soonest.
struct WorldsPlan {
  int64_t worlds = 1, devices = 1;  // devices of a world
  PlannedLayout planned;

  // Requests a second that all worlds together can do; more than that wait ever longer.
  double capacity() const { return static_cast<double>(worlds) / planned.prediction.seconds; }
  // From the arrival of a request to its end, as plan/planner/queue.h says; nothing where the rate is not
  // below the capacity.
  std::optional<double> mean_seconds, p95_seconds;
};

struct ServerPlan {
  std::vector<WorldsPlan> choices;            // those that fit, the largest worlds first
  std::optional<size_t> best;                 // of these: the one with the least p95_seconds
  std::optional<PlannedLayout> least_memory;  // where nothing fits: what comes nearest
  int64_t considered = 0, costed = 0;         // layouts

  double most_capacity() const;
};

// Of each number of devices that divides `options.devices` the soonest layout, and how long `rate` requests a
// second take at so many worlds of it. All devices compute at once. Throws as make_plan() does.
ServerPlan make_server_plan(const engine::Settings& settings, const engine::Model& model,
                            const Machine& machine, const std::vector<Link>& links,
                            const PlanOptions& options, double rate,
                            const std::function<bool()>& interrupted = {});

// A row for each choice.
Table server_table(const ServerPlan& plan, double rate);

}  // namespace tessera::plan
