// How best to divide the devices of a server into worlds, each of which handles one request at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "plan/planner/planner.h"

namespace tessera::plan {

// This many worlds of equal ranks, in the layout that handles a request fastest.
struct WorldsPlan {
  int64_t worlds = 1, devices = 1;  // devices per world
  PlannedLayout planned;

  // The requests per second that all worlds together can handle; with more, waiting times grow without limit.
  double capacity() const { return static_cast<double>(worlds) / planned.prediction.seconds; }
  // From the arrival of a request to its end, by plan/planner/queue.h; nothing if the rate is not below the
  // capacity.
  std::optional<double> mean_seconds, p95_seconds;
};

struct ServerPlan {
  std::vector<WorldsPlan> choices;            // those that fit, largest worlds first
  std::optional<size_t> best;                 // of these, the one with the lowest p95_seconds
  std::optional<PlannedLayout> least_memory;  // if nothing fits: the layout that comes nearest
  int64_t considered = 0, costed = 0;         // layouts

  double most_capacity() const;
};

// For each number of devices that divides `options.devices`: the fastest layout, and how long requests take
// at that many worlds of it if `rate` arrive per second. All devices compute at once. Throws as make_plan()
// does.
ServerPlan make_server_plan(const engine::Settings& settings, const engine::Model& model,
                            const Machine& machine, const std::vector<Link>& links,
                            const PlanOptions& options, double rate,
                            const std::function<bool()>& interrupted = {});

// A row for each choice.
Table server_table(const ServerPlan& plan, double rate);

}  // namespace tessera::plan
