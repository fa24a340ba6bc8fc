// Finds the layouts in which a request is done soonest.
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
  // Of a device; that of the machine if it has one, otherwise any.
  std::optional<double> memory_bytes;
  bool allows_stale = true;  // layouts that work with activations of the step before
  bool uses_all = false;     // layouts of all devices alone
  size_t count = 10;         // of plans that are returned
  bool compares = true;      // also costs what people try first
  // What layouts are to have besides what the search chooses: `displaced_mode`, `warmup_steps`,
  // `text_encoder_parallel` and `vae_parallel` of it.
  parallel::ParallelOptions fixed = {};
  // So many compute at once, with those of other runs.
  int64_t busy_devices = 1;
};

struct PlannedLayout {
  parallel::ParallelOptions wish;
  parallel::Layout layout;
  Prediction prediction;
  std::string name;  // the options that ask for it; "one device" without any
};

struct Plan {
  std::vector<PlannedLayout> best;  // the soonest first, all of which fit
  // What people try first, each method alone or with CFG parallelism, whether it fits or not.
  std::vector<PlannedLayout> obvious;
  std::optional<PlannedLayout> least_memory;  // where nothing fits: what comes nearest
  int64_t considered = 0, costed = 0;         // layouts
};

// Of all valid layouts of up to so many devices, each with the soonest way to encode and decode. A layout is
// costed unless its least time is above that of the `count` best. `interrupted` is asked often; the search
// then throws engine::Cancelled.
Plan make_plan(const engine::Settings& settings, const engine::Model& model, const Machine& machine,
               const std::vector<Link>& links, const PlanOptions& options,
               const std::function<bool()>& interrupted = {});

// The same of one wish.
PlannedLayout predict_wish(Predictor& predictor, const parallel::ParallelOptions& wish,
                           const parallel::Workload& workload);

// The link of this kind, or the first, and those after it, which join devices further apart; with
// `gb_per_s`, that is the bandwidth of the first. Throws Error where the machine has no such link, or where
// nobody tells its bandwidth.
std::vector<Link> links_of_machine(const Machine& machine, int64_t devices,
                                   const std::optional<std::string>& kind = std::nullopt,
                                   std::optional<double> gb_per_s = std::nullopt);

// What the times of a plan rest on: "measurements of the machine", "poor measurements ..." where a
// calibration had too little time.
std::string basis_of(const Machine& machine);

// The options that ask for a layout, and the layout with what is predicted of it, `peak_bytes` by rank.
OrderedJson options_json(const PlannedLayout& planned);
OrderedJson layout_json(const PlannedLayout& planned);

// A row for each layout but those that are like one before: as exact, of as many devices, with the same
// seconds and memory within a thousandth. These are counted.
Table plan_table(const std::vector<PlannedLayout>& layouts);

// Why the first wins and why the obvious ones lose, a sentence each.
std::vector<std::string> reasons(const Plan& plan);

}  // namespace tessera::plan
