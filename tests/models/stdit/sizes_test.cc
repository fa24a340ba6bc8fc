// Open-Sora's common size, 51 frames of 240 x 426, on ranks: of its tokens (15 x 15 x 27) no number of ranks
// divides all axes, and the last row and column of its latents (30 x 53) are completed.
#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include <fstream>
#include <memory>

#include "tests/models/stdit/component.h"
#include "tests/support/degrees.h"
#include "tests/support/golden.h"
#include "tests/support/temporary_folder.h"
#include "weights/safetensors.h"

namespace tessera::models {
namespace {

// A guided video of one clip's length, sampled in two steps by the tiny network of the golden stdit3_b.
class LargeVideoOnRanks : public ::testing::TestWithParam<std::pair<const char*, parallel::ParallelOptions>> {
 protected:
  static void SetUpTestSuite() {
    const std::filesystem::path golden = golden_folder("opensora");
    folder_ = std::make_unique<TemporaryFolder>();
    Json one = JsonConfig::read(golden / "rflow_plain.json").values();
    const Json network = JsonConfig::read(golden / "stdit3_b.json").values();
    one["config"]["num_sampling_steps"] = 2;
    one["model_config"] = network["config"];
    one["weights"] = (golden / network["weights"].get<std::string>()).string();
    one["io"] = "io.safetensors";
    std::ofstream(case_file()) << one.dump();
    auto generator = at::detail::createCPUGenerator(3);
    constexpr int64_t kText = 20, kTextWidth = 32;
    at::Tensor mask = at::zeros({1, kText}, at::kLong);
    mask.narrow(1, 0, 11).fill_(1);
    const auto number = [](double value) { return at::full({1}, value, at::kFloat); };
    weights::write_safetensors(folder_->path() / "io.safetensors",
                               {{"in.z", at::randn({1, 4, 15, 30, 53}, generator)},
                                {"in.y", at::randn({1, 1, kText, kTextWidth}, generator)},
                                {"in.mask", mask},
                                {"in.fps", number(24)},
                                {"in.height", number(240)},
                                {"in.width", number(426)},
                                {"in.num_frames", number(51)}});
    expected_ = run_component(case_file(), {}).at("out.z");
  }
  static void TearDownTestSuite() {
    folder_.reset();
    expected_ = at::Tensor();
  }
  static std::filesystem::path case_file() { return folder_->path() / "case.json"; }

  static std::unique_ptr<TemporaryFolder> folder_;
  static at::Tensor expected_;
};

std::unique_ptr<TemporaryFolder> LargeVideoOnRanks::folder_;
at::Tensor LargeVideoOnRanks::expected_;

TEST_P(LargeVideoOnRanks, EqualsOneRank) {
  EXPECT_LE(relative_error(run_component(case_file(), GetParam().second).at("out.z"), expected_), 1e-4);
}

parallel::ParallelOptions by_heads(parallel::ParallelOptions options) {
  options.dynamic_sequence_parallel = false;
  return options;
}

parallel::ParallelOptions of_frames(parallel::ParallelOptions options, int64_t warmup_steps) {
  options.pipeline_patch_axis = parallel::GridAxis::kFrames;
  options.warmup_steps = warmup_steps;
  return options;
}

// Degrees: data, CFG, PipeFusion, ring, Ulysses, tensor.
using parallel::degrees;
INSTANTIATE_TEST_SUITE_P(Methods, LargeVideoOnRanks,
                         ::testing::Values(std::pair{"Cfg", degrees(1, true, 1, 1, 1, 1)},
                                           std::pair{"Dsp2", degrees(1, false, 1, 1, 2, 1)},
                                           std::pair{"Dsp3", degrees(1, false, 1, 1, 3, 1)},
                                           std::pair{"Dsp4", degrees(1, false, 1, 1, 4, 1)},
                                           std::pair{"Dsp8", degrees(1, false, 1, 1, 8, 1)},
                                           std::pair{"Ulysses2", by_heads(degrees(1, false, 1, 1, 2, 1))},
                                           std::pair{"Ulysses3", by_heads(degrees(1, false, 1, 1, 3, 1))},
                                           std::pair{"Ring2", degrees(1, false, 1, 2, 1, 1)},
                                           std::pair{"Ring3", degrees(1, false, 1, 3, 1, 1)},
                                           std::pair{"Ring8", degrees(1, false, 1, 8, 1, 1)},
                                           std::pair{"Usp4", by_heads(degrees(1, false, 1, 2, 2, 1))},
                                           std::pair{"CfgUsp8", degrees(1, true, 1, 2, 2, 1)},
                                           std::pair{"Tensor2", degrees(1, false, 1, 1, 1, 2)},
                                           std::pair{"Tensor3", degrees(1, false, 1, 1, 1, 3)},
                                           std::pair{"DspTensor", degrees(1, false, 1, 1, 4, 2)},
                                           std::pair{"WarmUpOfFrames",
                                                     of_frames(degrees(1, false, 2, 1, 1, 1), 2)}),
                         [](const auto& info) { return info.param.first; });

}  // namespace
}  // namespace tessera::models
