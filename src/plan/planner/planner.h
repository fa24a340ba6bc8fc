// Finds the layouts in which a request finishes soonest.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/table.h"
#include "parallel/options.h"
#include "plan/planner/prediction.h"

namespace tessera::plan {

struct PlanOptions {
  int64_t devices = 1;
  // Per device; by default, that of the machine, or unlimited if it has none.
  std::optional<double> memory_bytes;
  bool allows_stale = true;  // layouts that work with activations of the previous step
  bool uses_all = false;     // only layouts that use all devices
  size_t count = 10;         // the number of plans to return
  bool compares = true;      // also costs what people try first
  // Settings that all layouts must have besides those that the search chooses: `displaced_mode`,
  // `warmup_steps`, `text_encoder_parallel` and `vae_parallel`.
  parallel::ParallelOptions fixed = {};
  // The number that compute at once, including those of other runs.
  int64_t busy_devices = 1;
};

struct PlannedLayout {
  parallel::ParallelOptions wish;
  parallel::Layout layout;
  Prediction prediction;
  std::string name;  // the options that select it; "one device" if there are none
};

struct Plan {
  std::vector<PlannedLayout> best;  // fastest first; all of them fit
  // What people try first, each method alone or with CFG parallelism, whether or not it fits.
  std::vector<PlannedLayout> obvious;
  std::optional<PlannedLayout> least_memory;  // if nothing fits: the layout that comes nearest
  int64_t considered = 0, costed = 0;         // layouts
};

// Searches all valid layouts of up to this many devices, each with the fastest way to encode and decode. A
// layout is costed unless its least time exceeds those of the `count` best. `interrupted` is asked often; if
// it returns true, the search throws engine::Cancelled.
Plan make_plan(const engine::Settings& settings, const engine::Model& model, const Machine& machine,
               const std::vector<Link>& links, const PlanOptions& options,
               const std::function<bool()>& interrupted = {});

// The same for one wish.
PlannedLayout predict_wish(Predictor& predictor, const parallel::ParallelOptions& wish,
                           const parallel::Workload& workload);

// The link of this kind, or the first, and those after it, which join devices further apart; `gb_per_s`, if
// given, is the bandwidth of the first. Throws Error if the machine has no such link, or if its bandwidth is
// unknown.
std::vector<Link> links_of_machine(const Machine& machine, int64_t devices,
                                   const std::optional<std::string>& kind = std::nullopt,
                                   std::optional<double> gb_per_s = std::nullopt);

// What the times of a plan are based on: "measurements of the machine", or "poor measurements ..." if a
// calibration had too little time.
std::string basis_of(const Machine& machine);

// The options that select a layout, and the layout with its prediction, including `peak_bytes` by rank.
OrderedJson options_json(const PlannedLayout& planned);
OrderedJson layout_json(const PlannedLayout& planned);

// A row for each layout, except those that resemble an earlier one: equally exact, on as many devices, with
// the same seconds and memory within a thousandth. These are counted.
Table plan_table(const std::vector<PlannedLayout>& layouts);

// Why the first one wins and why the obvious ones lose, one sentence each.
std::vector<std::string> reasons(const Plan& plan);

}  // namespace tessera::plan
