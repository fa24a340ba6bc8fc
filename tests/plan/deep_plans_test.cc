// Tests plans of a model with so many blocks that pipelines have many stages.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/json.h"
#include "parallel/displaced_mode.h"
#include "parallel/layout_search.h"
#include "plan/planner/planner.h"
#include "plan/trace_model.h"
#include "tests/support/golden.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_pixart.h"

namespace tessera::plan {
namespace {

// The tiny model with more blocks, for pipelines of many stages, and more heads, for 2d tensor parallelism.
class DeepModel : public ::testing::Test {
 protected:
  void SetUp() override {
    namespace fs = std::filesystem;
    fs::copy(golden_folder("tiny-pixart"), folder_.path(), fs::copy_options::recursive);
    const fs::path path = folder_.path() / "transformer" / "config.json";
    Json config = read_json(path);
    config["num_layers"] = 8;
    config["num_attention_heads"] = 2 * config["num_attention_heads"].get<int64_t>();
    config["attention_head_dim"] = config["attention_head_dim"].get<int64_t>() / 2;
    std::ofstream(path) << config;
    fs::remove(path.parent_path() / "diffusion_pytorch_model.safetensors");  // shapes alone count
    model_ = engine::read_model(folder_.path());
    settings_ = engine::resolve(engine::tiny_request(128, 128, 1), model_);
  }

  TemporaryFolder folder_;
  engine::Model model_;
  engine::Settings settings_;
};

// With some stages near each other and others not.
Machine of_two_levels(const char* name) {
  Machine machine = read_machine(golden_folder(fmt::format("../../machines/{}.json", name)));
  machine.links.front().devices = 2;
  return machine;
}

TEST_F(DeepModel, BoundsAreBelowWhatStagesTake) {
  const parallel::Workload workload = engine::workload(settings_, model_);
  for (const char* const name : {"h100", "a100-nvlink"}) {
    const Machine machine = of_two_levels(name);
    Predictor predictor(settings_, model_, machine, machine.links);
    double greatest = 0;
    for (const int64_t warmup : {1, 3}) {
      for (parallel::ParallelOptions wish : parallel::valid_wishes(workload, 8, {})) {
        if (wish.pipefusion_parallel_degree == 1) continue;
        wish.warmup_steps = warmup;
        const parallel::Layout layout = parallel::resolve_layout(wish, workload, std::nullopt);
        const Prediction prediction = predictor.predict_denoiser(layout);
        const double share = predictor.least_seconds(layout, prediction.step.computing) / prediction.denoise;
        EXPECT_LE(share, 1) << name << ", " << parallel::degrees_text(wish) << ", " << layout.patches;
        greatest = std::max(greatest, share);
      }
    }
    EXPECT_GT(greatest, 0.7) << name;
  }
}

// Where messages take almost all of the time, the bound knows those of each method, near and far.
TEST_F(DeepModel, BoundsKnowWhatTravels) {
  Machine machine = of_two_levels("h100");
  for (Link& link : machine.links) link.bandwidth = *link.bandwidth / 1000;
  const parallel::Workload workload = engine::workload(settings_, model_);
  Predictor predictor(settings_, model_, machine, machine.links);
  const auto share_of = [&](const parallel::ParallelOptions& wish) {
    const parallel::Layout layout = parallel::resolve_layout(wish, workload, std::nullopt);
    return predictor.least_seconds(layout) / predictor.predict_denoiser(layout).denoise;
  };
  for (const int64_t devices : {4, 8}) {
    for (parallel::ParallelOptions wish : parallel::valid_wishes(workload, devices, {})) {
      EXPECT_LE(share_of(wish), 1) << parallel::degrees_text(wish);
      if (wish.displaced_patch_degree == 1) continue;
      for (const auto& [name, mode] : parallel::displaced_modes()) {
        wish.displaced_mode = mode;
        EXPECT_LE(share_of(wish), 1) << parallel::degrees_text(wish) << ", " << name;
      }
    }
  }
  parallel::ParallelOptions displaced, ring, patched_ring, tensor, tensor_2d;
  displaced.displaced_patch_degree = 4;
  ring.ring_degree = 4;
  patched_ring.ring_degree = 4;
  patched_ring.pipefusion_parallel_degree = 2;
  tensor.tensor_parallel_degree = 4;
  tensor_2d.tensor_parallel_degree = 4;
  tensor_2d.split_scheme = parallel::SplitScheme::k2d;
  for (const auto& wish : {displaced, ring, patched_ring, tensor, tensor_2d})
    EXPECT_GT(share_of(wish), 0.6) << parallel::degrees_text(wish);
}

// Where what each message takes by itself is almost all of the time, the bound counts none that is not sent.
TEST_F(DeepModel, BoundsCountOnlyWhatIsSent) {
  Machine machine = of_two_levels("h100");
  for (Link& link : machine.links) link.latency *= 100;
  const parallel::Workload workload = engine::workload(settings_, model_);
  Predictor predictor(settings_, model_, machine, machine.links);
  for (const parallel::ParallelOptions& wish : parallel::valid_wishes(workload, 8, {})) {
    const parallel::Layout layout = parallel::resolve_layout(wish, workload, std::nullopt);
    const double share = predictor.least_seconds(layout) / predictor.predict_denoiser(layout).denoise;
    EXPECT_LE(share, 1) << parallel::degrees_text(wish) << ", " << layout.patches;
  }
}

// With room for all there is no bar, and every layout is costed.
TEST_F(DeepModel, TheBestAreThoseOfAll) {
  for (const char* const name : {"h100", "a100-nvlink"}) {
    const Machine machine = of_two_levels(name);
    PlanOptions options{.devices = 6, .memory_bytes = {}};
    options.compares = false;
    const Plan some = make_plan(settings_, model_, machine, machine.links, options);
    options.count = 10000;
    const Plan all = make_plan(settings_, model_, machine, machine.links, options);
    EXPECT_EQ(all.costed, all.considered);
    EXPECT_LT(some.costed, all.costed) << name;
    ASSERT_EQ(some.best.size(), 10U);
    for (size_t i = 0; i < some.best.size(); ++i) {
      EXPECT_EQ(some.best[i].name, all.best[i].name) << name << ", " << i;
      EXPECT_EQ(some.best[i].prediction.seconds, all.best[i].prediction.seconds) << some.best[i].name;
      EXPECT_EQ(some.best[i].prediction.peak_bytes, all.best[i].prediction.peak_bytes);
    }
  }
}

// Stages between others hold what their traces say, of which only one of each kind is made.
TEST_F(DeepModel, HoldsWhatEachStageHolds) {
  const Machine machine = of_two_levels("h100");
  const parallel::Workload workload = engine::workload(settings_, model_);
  Predictor predictor(settings_, model_, machine, machine.links);
  parallel::ParallelOptions wish;
  wish.pipefusion_parallel_degree = 5;  // of one and of two blocks
  const parallel::Layout layout = parallel::resolve_layout(wish, workload, std::nullopt);
  Prediction prediction;
  predictor.add_memory(layout, prediction);
  ASSERT_EQ(prediction.peak_bytes.size(), 5U);
  for (int64_t rank = 0; rank < 5; ++rank) {
    const RankTrace trace = trace_rank(settings_, model_, layout, rank, steps_to_trace(settings_, layout),
                                       {.names_roles = false});
    EXPECT_EQ(prediction.peak_bytes[static_cast<size_t>(rank)], trace.peak_bytes()) << rank;
  }
}

}  // namespace
}  // namespace tessera::plan
