// Tests the search of layouts and the fit of machines against sums by hand and against all layouts.
#include "plan/planner/planner.h"

#include <gtest/gtest.h>

#include <cmath>

#include "parallel/layout_rules.h"
#include "parallel/layout_search.h"
#include "plan/planner/fit.h"
#include "tests/support/golden.h"
#include "tests/support/tiny_pixart.h"

namespace tessera::plan {
namespace {

Machine shipped(const char* name) {
  return read_machine(golden_folder(fmt::format("../../machines/{}.json", name)));
}

engine::Settings settings_of(int64_t pictures = 1) {
  engine::Request request = engine::tiny_request(128, 128, 1);
  request.num_images_per_prompt = pictures;
  request.num_inference_steps = 8;
  return engine::resolve(request, engine::tiny());
}

parallel::Workload video() {
  return {.heads = 6,
          .blocks = 12,
          .token_rows = 10,
          .token_frames = 5,
          .axial_attention = true,
          .steps = 10,
          .pictures = 2};
}

// All degrees up to 12, of which the search has those that multiply to the number of ranks and break no rule.
TEST(LayoutSearch, FindsEveryProduct) {
  for (const int64_t ranks : {1, 6, 8, 12}) {
    std::vector<parallel::ParallelOptions> all = {{}};
    for (const parallel::Degree& degree : parallel::kDegrees) {
      std::vector<parallel::ParallelOptions> more;
      for (const parallel::ParallelOptions& wish : all) {
        for (int64_t value = 1; value <= ranks; ++value) {
          parallel::ParallelOptions with = wish;
          with.*degree.value = value;
          if (ranks % with.degrees() == 0) more.push_back(with);
        }
      }
      all = std::move(more);
    }
    std::vector<parallel::ParallelOptions> expected;
    for (parallel::ParallelOptions wish : all) {
      for (const bool cfg : {false, true}) {
        wish.use_cfg_parallel = cfg;
        if (wish.degrees() == ranks && parallel::violations(wish, video()).empty()) expected.push_back(wish);
      }
    }
    std::vector<parallel::ParallelOptions> found;
    for (parallel::ParallelOptions wish : parallel::valid_wishes(video(), ranks, {})) {
      EXPECT_TRUE(parallel::violations(wish, video()).empty());
      wish.split_scheme.reset();
      wish.dynamic_sequence_parallel.reset();
      wish.num_pipeline_patch.reset();
      wish.pipeline_patch_axis.reset();
      if (std::find(found.begin(), found.end(), wish) == found.end()) found.push_back(wish);
    }
    EXPECT_EQ(found.size(), expected.size()) << ranks;
    for (const parallel::ParallelOptions& wish : expected)
      EXPECT_NE(std::find(found.begin(), found.end(), wish), found.end()) << parallel::degrees_text(wish);
  }
}

TEST(LayoutSearch, LeavesOutWhatIsStale) {
  for (const parallel::ParallelOptions& wish : parallel::valid_wishes(video(), 12, {.stale = false}))
    EXPECT_TRUE(parallel::resolve_layout(wish, video(), std::nullopt).is_exact());
}

// The best of all layouts, of which none is left out that could be among them.
TEST(Planner, FindsTheSoonestOfAll) {
  const Machine machine = shipped("l20");
  const engine::Settings settings = settings_of();
  const parallel::Workload workload = engine::workload(settings, engine::tiny());
  const Plan plan = make_plan(settings, engine::tiny(), machine, machine.links,
                              {.devices = 4, .memory_bytes = {}, .count = 3});
  ASSERT_EQ(plan.best.size(), 3U);
  EXPECT_LE(plan.best[0].prediction.seconds, plan.best[1].prediction.seconds);
  EXPECT_LE(plan.best[1].prediction.seconds, plan.best[2].prediction.seconds);
  Predictor predictor(settings, engine::tiny(), machine, machine.links);
  double least = INFINITY;
  for (const int64_t devices : {1, 2, 4}) {
    for (const parallel::ParallelOptions& wish : parallel::valid_wishes(workload, devices, {})) {
      const PlannedLayout planned = predict_wish(predictor, wish, workload);
      least = std::min(least, planned.prediction.seconds);
    }
  }
  EXPECT_DOUBLE_EQ(plan.best[0].prediction.seconds, least);
  EXPECT_FALSE(reasons(plan).empty());
}

// On data sheets and on machines with launches; also over links of two levels.
TEST(Planner, LeavesOutNothingThatCanBeSooner) {
  for (const char* const name : {"l20", "h100", "a100-nvlink", "t4-pcie"}) {
    Machine machine = shipped(name);
    if (machine.links.size() > 1) machine.links.front().devices = 2;
    for (const int64_t pictures : {1, 3}) {
      const engine::Settings settings = settings_of(pictures);
      const parallel::Workload workload = engine::workload(settings, engine::tiny());
      Predictor predictor(settings, engine::tiny(), machine, machine.links);
      double greatest = 0;
      for (const parallel::ParallelOptions& wish : parallel::valid_wishes(workload, 8, {})) {
        const parallel::Layout layout = parallel::resolve_layout(wish, workload, std::nullopt);
        const double share = predictor.least_seconds(layout) / predictor.predict_denoiser(layout).denoise;
        EXPECT_LE(share, 1) << name << ", " << parallel::degrees_text(wish);
        greatest = std::max(greatest, share);
      }
      EXPECT_GT(greatest, 0.5) << name;  // a bound of 0 is one too
    }
  }
}

TEST(Planner, KeepsToTheMemoryOfADevice) {
  const Machine machine = shipped("l20");
  const engine::Settings settings = settings_of();
  PlanOptions options{.devices = 4, .memory_bytes = {}, .count = 50};
  const Plan all = make_plan(settings, engine::tiny(), machine, machine.links, options);
  int64_t least = all.best.front().prediction.most_bytes(), most = least;
  for (const PlannedLayout& each : all.best) {
    least = std::min(least, each.prediction.most_bytes());
    most = std::max(most, each.prediction.most_bytes());
  }
  ASSERT_LT(least, most);
  options.memory_bytes = static_cast<double>(least);
  const Plan few = make_plan(settings, engine::tiny(), machine, machine.links, options);
  ASSERT_FALSE(few.best.empty());
  for (const PlannedLayout& each : few.best) EXPECT_LE(each.prediction.most_bytes(), least) << each.name;
  options.memory_bytes = static_cast<double>(least) - 1;
  const Plan none = make_plan(settings, engine::tiny(), machine, machine.links, options);
  EXPECT_TRUE(none.best.empty());
  ASSERT_TRUE(none.least_memory);
  EXPECT_EQ(none.least_memory->prediction.most_bytes(), least);
}

// With an exact result asked for, no layout is stale; replicas divide pictures.
TEST(Planner, IsExactOnDemandAndDealsPictures) {
  const Machine machine = shipped("l20");
  const Plan plan = make_plan(settings_of(4), engine::tiny(), machine, machine.links,
                              {.devices = 4, .memory_bytes = {}, .allows_stale = false, .count = 40});
  bool deals = false;
  for (const PlannedLayout& each : plan.best) {
    EXPECT_TRUE(each.prediction.is_exact) << each.name;
    deals |= each.wish.data_parallel_degree == 4;
  }
  EXPECT_TRUE(deals);
}

// A run has all of its ranks, encodes and decodes as it was asked to, and needs no comparison.
TEST(Planner, PlansARunOfAllRanks) {
  const Machine machine = shipped("l20");
  PlanOptions options{.devices = 4, .memory_bytes = {}, .allows_stale = false, .uses_all = true, .count = 40};
  options.compares = false;
  options.ends.vae_parallel = false;
  options.ends.ulysses_degree = 4;  // is for the plan to choose
  const Plan plan = make_plan(settings_of(), engine::tiny(), machine, machine.links, options);
  EXPECT_TRUE(plan.obvious.empty());
  ASSERT_GT(plan.best.size(), 3U);
  for (const PlannedLayout& each : plan.best) {
    EXPECT_EQ(each.wish.degrees(), 4) << each.name;
    EXPECT_FALSE(each.layout.vae_parallel) << each.name;
    EXPECT_TRUE(each.layout.text_encoder_parallel) << each.name;
  }
}

TEST(Planner, GivesASlowDeviceLess) {
  Machine machine = shipped("l20");
  machine.speeds = {1, 0.5};
  const Plan plan =
      make_plan(settings_of(), engine::tiny(), machine, machine.links, {.devices = 2, .memory_bytes = {}});
  ASSERT_FALSE(plan.best.empty());
  for (const PlannedLayout& each : plan.best) {
    if (each.wish.degrees() == 1) continue;
    EXPECT_EQ(each.wish.rank_shares, (std::vector<double>{1, 0.5})) << each.name;
  }
}

MeasuredRun run_of(const std::vector<std::pair<WorkKind, double>>& work, double seconds) {
  MeasuredRun run{.name = "run", .seconds = seconds, .pieces = {}};
  Schedule schedule;
  RankSchedule& rank = schedule.ranks.emplace_back();
  for (const auto& [kind, each] : work) {
    Task task;
    task.kind = Task::Kind::kWork;
    task.work = kind;
    task.seconds = each;
    rank.tasks.push_back(task);
  }
  rank.program.push_back({.part = {}, .begin = 0, .end = rank.tasks.size(), .is_steady = true});
  run.pieces.push_back({std::move(schedule), 1, 1});
  return run;
}

// Runs that a machine with known numbers has done: products at 0.4 of their rate, attention at 0.7.
TEST(Fit, FindsTheNumbersOfAMachine) {
  Machine machine = shipped("a100");
  machine.efficiency.set(WorkKind::kGemm, 1);
  machine.launch = 1e-12;
  std::vector<MeasuredRun> runs;
  for (const auto& [gemm, attention] : {std::pair{1.0, 1.0}, {4.0, 1.0}, {1.0, 8.0}, {2.0, 30.0}})
    runs.push_back(
        run_of({{WorkKind::kGemm, gemm}, {WorkKind::kAttention, attention}}, gemm / 0.4 + attention / 0.7));
  const Fit fit = fit_machine(machine, {}, runs);
  ASSERT_EQ(fit.numbers.size(), 3U);
  EXPECT_NEAR(fit.numbers[0].value, 0.4, 0.02);
  EXPECT_NEAR(fit.numbers[1].value, 0.7, 0.02);
  for (size_t i = 0; i < runs.size(); ++i) EXPECT_NEAR(fit.seconds[i] / runs[i].seconds, 1, 0.02);
  EXPECT_NEAR(fit.machine.efficiency.share(GemmWork{1, 1, 1}, "fp16"), fit.numbers[0].value, 1e-9);
}

}  // namespace
}  // namespace tessera::plan
