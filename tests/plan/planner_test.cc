// Tests the search of layouts and the fit of machines against sums by hand and against all layouts.
#include "plan/planner/planner.h"

#include <gtest/gtest.h>

#include <cmath>

#include "parallel/layout_rules.h"
#include "parallel/layout_search.h"
#include "plan/planner/fit.h"
#include "plan/planner/recorded_run.h"
#include "plan/planner/server_plan.h"
#include "plan/trace_model.h"
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

// The wish with each way to encode and decode.
std::vector<PlannedLayout> with_all_ends(Predictor& predictor, const parallel::ParallelOptions& wish,
                                         const parallel::Workload& workload) {
  std::vector<PlannedLayout> all;
  for (const bool text_encoder : {true, false}) {
    for (const bool vae : {true, false}) {
      parallel::ParallelOptions with = wish;
      with.text_encoder_parallel = text_encoder;
      with.vae_parallel = vae;
      if (wish.degrees() == 1) with = wish;
      all.push_back(predict_wish(predictor, with, workload));
    }
  }
  return all;
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
      for (const PlannedLayout& planned : with_all_ends(predictor, wish, workload)) {
        least = std::min(least, planned.prediction.seconds);
        EXPECT_GE(planned.prediction.denoise, predictor.least_seconds(planned.layout)) << planned.name;
      }
    }
  }
  // Encoding and decoding are only done otherwise than by default if that saves a thousandth.
  EXPECT_GE(plan.best[0].prediction.seconds, least);
  EXPECT_LE(plan.best[0].prediction.seconds, least * 1.0021);
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

// Each end as it is soonest: where messages take long, one rank decodes. What is given stays.
TEST(Planner, ChoosesHowToEncodeAndDecode) {
  Machine machine = shipped("l20");
  const engine::Settings settings = settings_of();
  const parallel::Workload workload = engine::workload(settings, engine::tiny());
  parallel::ParallelOptions ulysses;
  ulysses.ulysses_degree = ulysses.ring_degree = 2;
  for (const bool is_slow : {false, true}) {
    Link link{
        .kind = "link", .bandwidth = is_slow ? 1e7 : 1e15, .latency = is_slow ? 1e-3 : 0, .measured = {}};
    Predictor predictor(settings, engine::tiny(), machine, {link});
    parallel::ParallelOptions wish = ulysses;
    parallel::Layout layout = parallel::resolve_layout(wish, workload, std::nullopt);
    Prediction chosen = predictor.predict_denoiser(layout);
    predictor.choose_ends(wish, layout, chosen);
    if (is_slow) {
      EXPECT_FALSE(layout.vae_parallel);
    }
    EXPECT_EQ(wish.vae_parallel.value_or(true), layout.vae_parallel);
    ASSERT_TRUE(chosen.other_decode);
    EXPECT_LT(chosen.decode, *chosen.other_decode);
    for (const PlannedLayout& other : with_all_ends(predictor, ulysses, workload))
      EXPECT_LE(chosen.seconds, other.prediction.seconds * 1.0021);
    EXPECT_DOUBLE_EQ(predict_wish(predictor, wish, workload).prediction.seconds, chosen.seconds);
    wish = ulysses;
    wish.vae_parallel = true;
    layout = parallel::resolve_layout(wish, workload, std::nullopt);
    predictor.choose_ends(wish, layout, chosen);
    EXPECT_TRUE(layout.vae_parallel);
  }
}

TEST(Planner, GivesLayoutsWhatIsFixed) {
  const Machine machine = shipped("l20");
  PlanOptions options{.devices = 4, .memory_bytes = {}, .count = 50};
  options.fixed.warmup_steps = 3;
  options.fixed.vae_parallel = false;
  bool has_pipeline = false;
  for (const PlannedLayout& each :
       make_plan(settings_of(), engine::tiny(), machine, machine.links, options).best) {
    EXPECT_EQ(each.wish.vae_parallel, std::optional(false)) << each.name;
    const bool is_stale = each.wish.pipefusion_parallel_degree > 1 || each.wish.displaced_patch_degree > 1;
    EXPECT_EQ(each.wish.warmup_steps, is_stale ? std::optional<int64_t>(3) : std::nullopt) << each.name;
    has_pipeline |= each.layout.warmup_steps == 3;
  }
  EXPECT_TRUE(has_pipeline);
}

// A choice for each number of devices that divides them, each the soonest of its number; the rate decides.
TEST(Planner, DealsTheDevicesOfAServer) {
  const Machine machine = shipped("l20");
  const engine::Settings settings = settings_of();
  const PlanOptions options{.devices = 4, .memory_bytes = {}};
  const ServerPlan idle = make_server_plan(settings, engine::tiny(), machine, machine.links, options, 1e-6);
  ASSERT_EQ(idle.choices.size(), 3U);
  double soonest = INFINITY;
  for (size_t i = 0; i < 3; ++i) {
    const WorldsPlan& choice = idle.choices[i];
    EXPECT_EQ(choice.devices, 4 >> i);
    EXPECT_EQ(choice.worlds * choice.devices, 4);
    EXPECT_EQ(parallel::Mesh(choice.planned.layout.sizes).world_size(), choice.devices);
    EXPECT_NEAR(*choice.p95_seconds / choice.planned.prediction.seconds, 1, 1e-3);
    soonest = std::min(soonest, choice.planned.prediction.seconds);
  }
  // Nobody waits: the soonest is the best. Where everybody does, it is the one that can do most.
  ASSERT_TRUE(idle.best);
  EXPECT_EQ(idle.choices[*idle.best].planned.prediction.seconds, soonest);
  const double most = idle.most_capacity();
  const ServerPlan busy =
      make_server_plan(settings, engine::tiny(), machine, machine.links, options, 0.99 * most);
  ASSERT_TRUE(busy.best);
  EXPECT_EQ(busy.choices[*busy.best].capacity(), most);
  const ServerPlan beyond = make_server_plan(settings, engine::tiny(), machine, machine.links, options, most);
  EXPECT_FALSE(beyond.best);
}

TEST(Planner, KeepsToTheMemoryOfADevice) {
  const Machine machine = shipped("l20");
  const engine::Settings settings = settings_of();
  PlanOptions options{.devices = 4, .memory_bytes = {}, .count = 50};
  options.fixed.vae_parallel = true;
  const Plan all = make_plan(settings, engine::tiny(), machine, machine.links, options);
  int64_t least = all.best.front().prediction.most_bytes(), most = least;
  for (const PlannedLayout& each : all.best) {
    least = std::min(least, each.prediction.most_bytes());
    most = std::max(most, each.prediction.most_bytes());
  }
  ASSERT_LT(least, most);
  // Left to choose, it decodes on all ranks what one rank has no room for.
  options.fixed = {};
  options.memory_bytes = static_cast<double>(least);
  const Plan few = make_plan(settings, engine::tiny(), machine, machine.links, options);
  ASSERT_FALSE(few.best.empty());
  for (const PlannedLayout& each : few.best) EXPECT_LE(each.prediction.most_bytes(), least) << each.name;
  options.count = 1;  // which is not among the soonest that are looked at first
  EXPECT_EQ(make_plan(settings, engine::tiny(), machine, machine.links, options).best.size(), 1U);
  options.count = 50;
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
  options.fixed.vae_parallel = false;
  options.fixed.text_encoder_parallel = true;
  options.fixed.ulysses_degree = 4;  // is for the plan to choose
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

// A denoiser attends to as many tokens as the prompts have, as in a trace of all that a run does.
TEST(Planner, CountsTheTokensOfPrompts) {
  Machine machine = shipped("l20");
  for (auto& [dtype, rate] : machine.gemm_rates) rate /= 1e6;  // products take almost all of the time
  OperationCosts costs(machine);
  parallel::Layout alone;
  alone.stage_blocks = {engine::tiny().shape.blocks};
  const auto seconds = [&](const std::string& prompt) {
    const engine::Settings settings =
        engine::resolve(engine::tiny_request(32, 32, 1, {prompt}), engine::tiny());
    Trace whole{.model = "tiny", .settings = {}, .steps = 4, .traced_steps = 1, .ranks = {}};
    whole.ranks.push_back(trace_rank(settings, engine::tiny(), alone, 0, 1));
    const RunCosts run =
        run_costs(schedule_of(whole, costs, "test"), 4, costs_on(machine, machine.links, 1), "test");
    Predictor predictor(settings, engine::tiny(), machine, machine.links);
    const double denoise = predictor.predict_denoiser(alone).denoise;
    EXPECT_NEAR(denoise / run.phase_seconds(Phase::kDenoise), 1, 1e-6) << prompt;
    return denoise;
  };
  EXPECT_LT(seconds("a"),
            0.9 * seconds("a long prompt of many more words, as people write them for pictures"));
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

// A number is told absolutely, beside what the fit has multiplied; what no run depends on keeps its value.
TEST(Fit, TellsNumbersWithTheirUnits) {
  Machine machine = shipped("a100");
  machine.efficiency.set(WorkKind::kGemm, 0.8);
  machine.launch = 5e-6;
  const Fit fit = fit_machine(machine, {}, {run_of({{WorkKind::kGemm, 2.0}}, 4.0)});
  EXPECT_EQ(fit.numbers[0].name, "gemm efficiency");
  EXPECT_NEAR(*fit.numbers[0].factor, 0.5, 0.02);
  EXPECT_NEAR(fit.numbers[0].value, 0.8 * *fit.numbers[0].factor, 1e-9);
  EXPECT_TRUE(fit.numbers[0].is_told);
  EXPECT_FALSE(fit.numbers[1].is_told);
  EXPECT_EQ(fit.numbers[2].name, "launch");
  EXPECT_EQ(fit.numbers[2].unit, "us");
  EXPECT_NEAR(fit.numbers[2].value, 5, 1e-6);
}

// A link whose messages were measured is fitted too; shares that were measured hold what launching takes.
TEST(Fit, ScalesMeasuredLinks) {
  Machine machine = shipped("a100");
  machine.efficiency.set(WorkKind::kGemm, 1);
  machine.launch = 0;
  machine.links = {{.kind = "memory", .bandwidth = 4e9, .measured = {{"all_gather", {{2, 1e6, 0.25}}}}}};
  MeasuredRun run = run_of({}, 1);
  run.devices = 2;
  Task post, wait;
  post.kind = Task::Kind::kPost;
  post.meeting = 0;
  post.sent = post.received = 1e6;
  wait.kind = Task::Kind::kWait;
  Schedule& schedule = run.pieces.front().schedule;
  schedule.channels = 1;
  schedule.meetings.push_back({.channel = 0,
                               .members = 2,
                               .first = 0,
                               .last = 1,
                               .transmission = {"all_gather", false, 2, 1, 1e6, 1e6}});
  schedule.ranks.front().tasks = {post, wait};
  schedule.ranks.front().program.front().end = 2;
  schedule.ranks.front().program.front().posts = 1;
  schedule.ranks.push_back(schedule.ranks.front());
  schedule.ranks.back().rank = 1;
  const Fit fit = fit_machine(machine, machine.links, {run});
  EXPECT_NEAR(fit.seconds.front(), 1, 0.2);
  ASSERT_EQ(fit.numbers.size(), 5U);  // without launching
  EXPECT_EQ(fit.numbers[2].name, "link bandwidth");
  EXPECT_NEAR(fit.numbers[2].value, 4 * *fit.numbers[2].factor, 1e-9);
  EXPECT_NEAR(fit.machine.links.front().measured.at("all_gather").front()[2], 0.25 / *fit.numbers[2].factor,
              1e-9);
  EXPECT_FALSE(fit.numbers[3].is_told);  // the contention, which measured messages have in them
}

// The trace of a run on a machine that reaches 0.4 of its rates in products and 0.7 in attention, with times.
Trace recorded(const Machine& machine, int64_t side) {
  engine::Request request = engine::tiny_request(side, side, 1);
  request.num_inference_steps = 3;
  const engine::Settings settings = engine::resolve(request, engine::tiny());
  parallel::Layout layout;
  layout.stage_blocks = {engine::tiny().shape.blocks};
  Trace trace{.model = "tiny",
              .settings = {{"dtype", "fp32"}, {"threads", 2}},
              .steps = 3,
              .traced_steps = 3,
              .ranks = {}};
  trace.ranks.push_back(trace_rank(settings, engine::tiny(), layout, 0, 3));
  OperationCosts costs(machine);
  RankTrace& rank = trace.ranks.front();
  double now = 0;
  for (size_t i = 0; i < rank.events.size(); ++i) {
    const double begin = now;
    for (const MappedWork* const mapped : costs.operators(rank, i)) {
      const WorkKind kind = work_kind(mapped->work);
      now += mapped->mapping.latency / (kind == WorkKind::kAttention ? 0.7
                                        : kind == WorkKind::kVector  ? 1
                                                                     : 0.4);
    }
    rank.events[i].time = {begin, now};
    // Reading weights, between phases and layers of the text encoder.
    if (rank.events[i].phase == Phase::kEncode) now += 5;
  }
  return trace;
}

TEST(Fit, TakesRecordedRuns) {
  Machine machine = shipped("l20");
  for (const WorkKind kind : kAllWorkKinds) machine.efficiency.set(kind, 1);
  OperationCosts costs(machine);
  std::vector<MeasuredRun> runs;
  for (const int64_t side : {32, 256}) {
    const std::vector<MeasuredRun> phases =
        measured_phases(recorded(machine, side), costs, fmt::format("{}.json", side));
    ASSERT_EQ(phases.size(), 2U);
    EXPECT_EQ(phases[0].name, fmt::format("{}.json, denoising", side));
    EXPECT_EQ(phases[1].name, fmt::format("{}.json, decoding", side));
    EXPECT_LT(phases[0].seconds, 1);
    runs.insert(runs.end(), phases.begin(), phases.end());
  }
  const Fit fit = fit_machine(machine, {}, runs);
  ASSERT_EQ(fit.numbers.size(), 2U);
  for (size_t i = 0; i < runs.size(); ++i)
    EXPECT_NEAR(fit.seconds[i] / runs[i].seconds, 1, 0.05) << runs[i].name;
  EXPECT_NEAR(fit.numbers[0].value, 0.4, 0.06);
}

std::string refusal_of(const Trace& trace) {
  try {
    recorded_on(trace, "run.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Fit, RefusesTracesThatAreNoRecords) {
  const Machine machine = shipped("l20");
  const Trace good = recorded(machine, 32);
  const RecordedOn on = recorded_on(good, "run.json");
  EXPECT_EQ(on.dtype, "fp32");
  EXPECT_EQ(on.threads, 2);
  Trace trace = good;
  trace.ranks.front().events[7].time.reset();
  EXPECT_NE(refusal_of(trace).find("from shapes"), std::string::npos);
  trace = good;
  trace.world_size = 2;
  EXPECT_NE(refusal_of(trace).find("1 of 2 ranks"), std::string::npos);
  trace = good;
  trace.settings.erase("threads");
  EXPECT_NE(refusal_of(trace).find("does not tell the threads"), std::string::npos);
  trace = good;
  std::erase_if(trace.ranks.front().events,
                [](const Event& event) { return event.phase == Phase::kDenoise; });
  EXPECT_NE(refusal_of(trace).find("denoised nothing"), std::string::npos);
}

}  // namespace
}  // namespace tessera::plan
