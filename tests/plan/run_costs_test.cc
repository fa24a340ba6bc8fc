// Tests what runs cost: that a trace of a few steps says of a whole run what a trace of all its steps says,
// for every method on 8 ranks, and what real ranks send.
#include "plan/run_costs.h"

#include <gtest/gtest.h>

#include <fstream>

#include "engine/engine.h"
#include "plan/hardware/trace_analysis.h"
#include "plan/planner/prediction.h"
#include "plan/recorder.h"
#include "plan/trace_model.h"
#include "plan/views.h"
#include "tests/plan/machines.h"
#include "tests/support/degrees.h"
#include "tests/support/golden.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_pixart.h"

namespace tessera::plan {
namespace {

using parallel::degrees;

// By how much a planner may be off that takes the ranks with the largest parts for all: of a step; and of a
// run, which begins and ends with messages of other ranks, and whose pictures of few rows they decode in
// uneven parts.
constexpr double kPredicted = 0.01, kPredictedWhole = 0.04;
constexpr int64_t kRunSteps = 20;  // of a run: more than are simulated one by one, after a warm-up too

double as_double(int64_t value) {
  return static_cast<double>(value);
}

struct RunMethod {
  std::string name;
  parallel::ParallelOptions options;
};

// Every method on `ranks` ranks, or on half of them with CFG parallelism.
std::vector<RunMethod> run_methods(int64_t ranks, bool cfg, bool is_video) {
  const int64_t n = cfg ? ranks / 2 : ranks;
  std::vector<RunMethod> all = {{"ulysses", degrees(1, cfg, 1, 1, n, 1)},
                                {"ring", degrees(1, cfg, 1, n, 1, 1)},
                                {"usp", degrees(1, cfg, 1, 2, n / 2, 1)},
                                {"tensor", degrees(1, cfg, 1, 1, 1, n)},
                                {"pipefusion", degrees(1, cfg, n, 1, 1, 1)}};
  all[4].options.warmup_steps = 1;
  all.push_back({"gather", degrees(1, cfg, 1, 1, 1, 1, n)});
  if (is_video) {
    all[0].options.dynamic_sequence_parallel = false;
    all.push_back({"dsp", degrees(1, cfg, 1, 1, n, 1)});
  } else {
    all.push_back({"displaced", degrees(1, cfg, 1, 1, 1, 1)});
    all.back().options.displaced_patch_degree = n;
    all.back().options.warmup_steps = 1;
  }
  return all;
}

// Models with blocks of 8 heads, without weights.
class RunsOf : public ::testing::TestWithParam<bool> {
 protected:
  void make_model(int64_t blocks) {
    namespace fs = std::filesystem;
    const fs::path golden = golden_folder(GetParam() ? "tiny-open-sora" : "tiny-pixart");
    for (const auto& entry : fs::recursive_directory_iterator(golden)) {
      const fs::path name = fs::relative(entry.path(), golden);
      if (entry.path().extension() != ".json" || name.begin()->string().starts_with("token")) continue;
      fs::create_directories((folder_.path() / name).parent_path());
      fs::copy_file(entry.path(), folder_.path() / name, fs::copy_options::overwrite_existing);
    }
    const fs::path path = folder_.path() / "transformer" / "config.json";
    Json config = read_json(path);
    if (GetParam()) {
      config.update({{"depth", blocks}, {"hidden_size", 64}, {"num_heads", 8}});
    } else {
      config.update({{"num_layers", blocks},
                     {"num_attention_heads", 8},
                     {"attention_head_dim", 8},
                     {"cross_attention_dim", 64}});
    }
    std::ofstream(path) << config;
    model_ = engine::read_model(folder_.path());
  }

  engine::Settings settings() const {
    engine::Request request = engine::tiny_request(128, 96, 1);
    request.num_inference_steps = kRunSteps;
    if (GetParam()) {
      request.resolution_binning = std::nullopt;
      request.video.num_frames = 34;
      request.output_type = engine::OutputType::kLatent;  // decoding takes most of a trace
    } else {
      request.scheduler = "ddim";  // all of its steps are alike
    }
    return engine::resolve(request, model_);
  }

  Trace trace(const engine::Settings& settings, const parallel::Layout& layout, int64_t traced) const {
    Trace trace{.model = "m",
                .settings = {},
                .world_size = parallel::Mesh(layout.sizes).world_size(),
                .steps = settings.steps,
                .traced_steps = traced,
                .ranks = {}};
    for (int64_t rank = 0; rank < trace.world_size; ++rank)
      trace.ranks.push_back(trace_rank(settings, model_, layout, rank, traced));
    return trace;
  }

  // A planner, which traces equal blocks once and one rank of each stage, says what all ranks do.
  void expect_predicted(const engine::Settings& all, const parallel::Layout& layout, const Link& link,
                        const Trace& whole, const RunCosts& run) const {
    Predictor predictor(all, model_, read_machine(golden_folder("../../machines/h100.json")), {link});
    const Prediction prediction = predictor.predict(layout);
    EXPECT_NEAR(prediction.seconds / run.seconds, 1, kPredictedWhole);
    EXPECT_NEAR(prediction.denoise / run.phase_seconds(Phase::kDenoise), 1, kPredictedWhole);
    EXPECT_NEAR(prediction.step_seconds / run.step_seconds, 1, kPredicted);
    EXPECT_LE(predictor.least_seconds(layout), run.phase_seconds(Phase::kDenoise));
    int64_t peak = 0;
    for (const RankTrace& rank : whole.ranks) {
      for (const Phase phase : {Phase::kDenoise, Phase::kDecode})
        peak = std::max(peak, rank.peak_bytes(phase));
    }
    EXPECT_NEAR(static_cast<double>(prediction.most_bytes()) / static_cast<double>(peak), 1, kPredicted);
    EXPECT_EQ(prediction.is_exact, layout.is_exact());
  }

  TemporaryFolder folder_;
  engine::Model model_;
};

// The sum of what the busiest rank must compute or move, operator by operator.
double least_seconds(const Trace& trace, OperationCosts& costs) {
  double most = 0;
  for (const RankTrace& rank : trace.ranks) {
    double seconds = 0;
    for (size_t event = 0; event < rank.events.size(); ++event) {
      for (const MappedWork* const mapped : costs.operators(rank, event))
        seconds += costs.least_seconds(*mapped) *
                   as_double(times_in_run(rank.events[event], trace.traced_steps, trace.steps));
    }
    most = std::max(most, seconds);
  }
  return most;
}

double end_of(const Simulation& simulation) {
  double end = 0;
  for (const RankTimeline& rank : simulation.ranks) end = std::max(end, rank.end);
  return end;
}

TEST_P(RunsOf, FewStepsSayWhatAllSay) {
  const Link link{.kind = "slow", .bandwidth = 2e8, .latency = 1e-6, .measured = {}};
  OperationCosts costs(read_machine(golden_folder("../../machines/h100.json")));
  std::vector<std::vector<double>> figures;  // by method
  for (const bool cfg : {false, true}) {
    make_model(cfg ? 4 : 8);  // a block for each stage
    const engine::Settings all = settings();
    for (const RunMethod& method : run_methods(8, cfg, GetParam())) {
      SCOPED_TRACE(method.name + (cfg ? " with cfg" : ""));
      const parallel::Layout layout =
          parallel::resolve_layout(method.options, engine::workload(all, model_), std::nullopt);
      const int64_t traced = steps_to_trace(all, layout);
      const Trace few = trace(all, layout, traced), whole = trace(all, layout, kRunSteps);
      ASSERT_EQ(few.ranks.size(), 8U);
      const Costs on = costs_on(costs.machine(), {link}, few.world_size);
      const Schedule of_few = schedule_of(few, costs, "few"), of_whole = schedule_of(whole, costs, "whole");
      const RunCosts run = run_costs(of_few, kRunSteps, on, "few");
      const RunCosts expected = run_costs(of_whole, kRunSteps, on, "whole");
      EXPECT_NEAR(run.seconds / expected.seconds, 1, 1e-6);
      expect_predicted(all, layout, link, few, run);
      // The timeline of a report.
      const double drawn = end_of(simulate(of_few, kRunSteps - traced + 1, on, "few"));
      EXPECT_NEAR(drawn / expected.seconds, 1, 1e-6);
      EXPECT_DOUBLE_EQ(end_of(simulate(of_whole, 1, on, "whole")), expected.seconds);
      figures.push_back(
          {expected.seconds, run.seconds, drawn, run.phase_seconds(Phase::kDenoise), run.step_seconds});
      for (size_t i = 0; i < 8; ++i) {
        EXPECT_NEAR(run.ranks[i].run.computing / expected.ranks[i].run.computing, 1, 1e-9) << "rank " << i;
        EXPECT_NEAR(run.ranks[i].run.waiting, expected.ranks[i].run.waiting, 1e-6 * run.seconds)
            << "rank " << i;
        const RunSteps steps{few.traced_steps, few.steps};
        EXPECT_EQ(sent_bytes(few.ranks[i], steps).run,
                  sent_bytes(whole.ranks[i], {kRunSteps, kRunSteps}).run);
        EXPECT_EQ(all_flops(few.ranks[i], steps).run, all_flops(whole.ranks[i], {kRunSteps, kRunSteps}).run);
        // All views add up to the same.
        int64_t sent = 0;
        for (const CollectiveRow& row : collective_rows(few.ranks[i], steps)) sent += row.sent.run;
        EXPECT_EQ(sent, sent_bytes(few.ranks[i], steps).run);
        double computing = 0;
        const TraceAnalysis analysis = analyze_trace(few, few.ranks[i], kRunSteps, costs, link);
        for (const Phase phase : kAllPhases) computing += analysis.computing(phase);
        EXPECT_NEAR(computing / run.ranks[i].run.computing, 1, 1e-9);
        EXPECT_LE(run.ranks[i].run.hidden, computing);
      }
      double parts = 0;
      for (const RunPart& part : run.parts) parts += part.seconds * as_double(part.times);
      EXPECT_NEAR(parts / run.seconds, 1, 1e-9);
      EXPECT_GE(run.seconds, least_seconds(few, costs));
      EXPECT_GT(run.step_seconds, 0);
    }
  }
  // So methods are in one order, by whichever of the figures.
  for (const std::vector<double>& one : figures) {
    for (const std::vector<double>& other : figures) {
      if (std::abs(one[0] / other[0] - 1) < 1e-5) continue;
      for (size_t i = 1; i < one.size(); ++i)
        EXPECT_EQ(one[i] < other[i], one[0] < other[0]) << i << ": " << one[i] << ", " << other[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, RunsOf, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "OpenSora" : "PixArt"; });

// Bytes that a rank sends in the denoiser, without the few by which ranks agree.
int64_t sent_in_denoiser(const RankTrace& rank, const RunSteps& steps) {
  constexpr int64_t kFewBytes = 16;
  Sum sent;
  for (const Event& event : rank.events) {
    const auto* const collective = std::get_if<CollectiveEvent>(&event.what);
    if (collective != nullptr && event.phase == Phase::kDenoise && collective->bytes >= kFewBytes)
      sent.add(collective->bytes, event, steps);
  }
  return sent.run;
}

// What four real ranks send in a run is what the trace of a few steps says.
TEST(RunsOfRanks, SendWhatTheTraceSays) {
  engine::Request request = engine::tiny_request(128, 96, 1);
  request.num_inference_steps = 7;
  request.output_type = engine::OutputType::kLatent;
  const engine::Settings settings = engine::resolve(request, engine::tiny());
  int64_t tried = 0;
  for (const bool cfg : {false, true}) {
    for (const RunMethod& method : run_methods(4, cfg, false)) {
      // The model has 2 heads and 2 blocks.
      if (!parallel::refusal(method.options, engine::workload(settings, engine::tiny())).empty()) continue;
      ++tried;
      SCOPED_TRACE(method.name + (cfg ? " with cfg" : ""));
      const parallel::Layout layout =
          parallel::resolve_layout(method.options, engine::workload(settings, engine::tiny()), std::nullopt);
      std::vector<int64_t> sent(4);
      const auto run_rank = [&](comm::World world) {
        RankTrace recorded{.rank = world.rank(), .events = {}};
        {
          Recorder recorder(world, recorded);
          engine::Observer observer;
          observer.started = [&](engine::Phase phase) {
            if (phase == engine::Phase::kLoadDenoiser) recorder.begin_loading(Phase::kDenoise);
            if (phase == engine::Phase::kDenoise) recorder.end_loading();
          };
          engine::Engine(engine::tiny(), engine::kNoLimit, world).run(settings, layout, observer);
        }
        sent[static_cast<size_t>(recorded.rank)] = sent_in_denoiser(recorded, {1, 1});
      };
      comm::run_ranks_as_threads(4, run_rank, comm::Wire::kShared);
      for (int64_t rank = 0; rank < 4; ++rank) {
        const int64_t traced = steps_to_trace(settings, layout);
        EXPECT_EQ(sent_in_denoiser(trace_rank(settings, engine::tiny(), layout, rank, traced),
                                   {traced, settings.steps}),
                  sent[static_cast<size_t>(rank)])
            << "rank " << rank;
      }
    }
  }
  EXPECT_GE(tried, 7);
}

RunCosts costs_of(const std::vector<double>& computing) {
  RunCosts costs;
  for (const double seconds : computing) costs.ranks.push_back({.run = {.computing = seconds}});
  return costs;
}

// By hand; whether ranks compute for an hour or for a microsecond.
TEST(RunCosts, ImbalanceIsTheTimeOfTheBusiestOverTheMean) {
  for (const double unit : {3600.0, 1e-6}) {
    EXPECT_DOUBLE_EQ(costs_of({1 * unit, 4 * unit, 1 * unit}).imbalance(), 2);
    EXPECT_EQ(costs_of({1 * unit, 4 * unit, 1 * unit}).busiest(), 1U);
    EXPECT_DOUBLE_EQ(costs_of({unit, unit}).imbalance(), 1);
  }
  EXPECT_EQ(costs_of({0, 0}).imbalance(), 1);  // nobody computes
}

constexpr int64_t kRows = 4, kInner = 256, kColumns = 512;

Event layer_of(Phase phase, const std::string& role, int64_t peak) {
  const auto shape = [](std::vector<int64_t> sizes) { return TensorShape{std::move(sizes), at::kBFloat16}; };
  OperationEvent layer{.name = "linear",
                       .role = role,
                       .output = shape({1, kRows, kColumns}),
                       .inputs = {shape({1, kRows, kInner}), shape({kColumns, kInner})},
                       .flops = 2 * kRows * kInner * kColumns,
                       .bytes = 2 * (kRows * kColumns + kRows * kInner + kInner * kColumns)};
  return {.phase = phase, .what = std::move(layer), .live_bytes = peak, .peak_bytes = peak};
}

// Two blocks for two prompts, then the decoder, which needs more memory than encoding did.
Trace encoded_and_decoded() {
  Trace trace;
  RankTrace& rank = trace.ranks.emplace_back();
  for (const char* const role : {"block.0", "block.0", "block.1", "block.1"})
    rank.events.push_back(layer_of(Phase::kEncode, role, 300'000));
  rank.events.push_back(layer_of(Phase::kDecode, "decoder", 500'000));
  return trace;
}

// How much longer than on a machine that does not tell each event of the rank takes.
std::vector<double> longer(const Trace& trace, Machine machine) {
  const auto tasks = [&](const Machine& on) {
    OperationCosts costs(on);
    return schedule_of(trace, costs, "trace").ranks[0].tasks;
  };
  std::vector<double> seconds;
  for (const Task& task : tasks(machine)) seconds.push_back(task.seconds);
  machine.load_rates.clear();
  machine.first_use_rate.reset();
  const std::vector<Task> before = tasks(machine);
  for (size_t i = 0; i < before.size(); ++i) seconds[i] -= before[i].seconds;
  return seconds;
}

TEST(RunCosts, WeightsOfTextEncodersAreReadOnce) {
  Trace trace = encoded_and_decoded();
  Machine machine = tx8();
  machine.load_rates = {{"bf16", 1e6}};
  const double read = as_double(2 * kInner * kColumns) / 1e6;
  const std::vector<double> expected = {read, 0, read, 0, 0};
  const std::vector<double> found = longer(trace, machine);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-9) << i;
  // Those that the encoder holds from its begin were loaded before.
  trace.ranks[0].weights_bytes = {2 * 2 * kInner * kColumns, 0, 0};
  for (const double seconds : longer(trace, machine)) EXPECT_EQ(seconds, 0);
}

TEST(RunCosts, MemoryIsTakenOnce) {
  Machine machine = tx8();
  machine.first_use_rate = 1e6;
  const std::vector<double> expected = {0.3, 0, 0, 0, 0.2};
  const std::vector<double> found = longer(encoded_and_decoded(), machine);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-9) << i;
}

}  // namespace
}  // namespace tessera::plan
