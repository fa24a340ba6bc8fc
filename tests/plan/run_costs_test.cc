// Tests what runs cost: that a trace of a few steps says of a whole run what a trace of all its steps says,
// for every method on 8 ranks.
#include "plan/run_costs.h"

#include <gtest/gtest.h>

#include <fstream>

#include "plan/hardware/trace_analysis.h"
#include "plan/trace_model.h"
#include "plan/views.h"
#include "tests/support/degrees.h"
#include "tests/support/golden.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_pixart.h"

namespace tessera::plan {
namespace {

using parallel::degrees;

constexpr int64_t kRunSteps = 24;  // of a run: more than are simulated one by one

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
  if (is_video) {
    all[0].options.dynamic_sequence_parallel = false;
    all.push_back({"dsp", degrees(1, cfg, 1, 1, n, 1)});
  } else {
    all.push_back({"displaced", degrees(1, cfg, 1, 1, 1, 1)});
    all.back().options.displaced_patch_degree = n;
    all.back().options.warmup_steps = 2;
  }
  return all;
}

// Models with 8 blocks of 8 heads, without weights.
class RunsOf : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    namespace fs = std::filesystem;
    const fs::path golden = golden_folder(GetParam() ? "tiny-open-sora" : "tiny-pixart");
    for (const auto& entry : fs::recursive_directory_iterator(golden)) {
      const fs::path name = fs::relative(entry.path(), golden);
      if (entry.path().extension() != ".json" || name.begin()->string().starts_with("token")) continue;
      fs::create_directories((folder_.path() / name).parent_path());
      fs::copy_file(entry.path(), folder_.path() / name);
    }
    const fs::path path = folder_.path() / "transformer" / "config.json";
    Json config = read_json(path);
    if (GetParam()) {
      config.update({{"depth", 8}, {"hidden_size", 64}, {"num_heads", 8}});
    } else {
      config.update({{"num_layers", 8},
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
      request.num_frames = 34;
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

TEST_P(RunsOf, FewStepsSayWhatAllSay) {
  const engine::Settings all = settings();
  const Link link{.kind = "slow", .bandwidth = 2e8, .latency = 1e-6};
  OperationCosts costs(read_machine(golden_folder("../../machines/h100.json")), {});
  std::vector<std::pair<double, double>> totals;
  for (const bool cfg : {false, true}) {
    for (const RunMethod& method : run_methods(8, cfg, GetParam())) {
      SCOPED_TRACE(method.name + (cfg ? " with cfg" : ""));
      const parallel::Layout layout =
          parallel::resolve_layout(method.options, engine::workload(all, model_), std::nullopt);
      // Open-Sora computes keys and values of the text in its first step.
      const int64_t traced = std::max<int64_t>(steps_to_trace(all, layout), GetParam() ? 3 : 1);
      const Trace few = trace(all, layout, traced), whole = trace(all, layout, kRunSteps);
      ASSERT_EQ(few.ranks.size(), 8U);
      const RunCosts run = run_costs(few, kRunSteps, costs, link, "few");
      const RunCosts expected = run_costs(whole, kRunSteps, costs, link, "whole");
      EXPECT_NEAR(run.seconds / expected.seconds, 1, 1e-6);
      totals.emplace_back(run.seconds, expected.seconds);
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
  // So methods are in one order.
  for (const auto& [few, whole] : totals) {
    for (const auto& [other_few, other_whole] : totals) {
      if (std::abs(whole / other_whole - 1) > 1e-5) {
        EXPECT_EQ(few < other_few, whole < other_whole);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, RunsOf, ::testing::Values(false),
                         [](const auto& info) { return info.param ? "OpenSora" : "PixArt"; });

}  // namespace
}  // namespace tessera::plan
