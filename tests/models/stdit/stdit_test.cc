// Compares Open-Sora's networks with the public reference, on one rank and on many.
#include <gtest/gtest.h>

#include "models/stdit/stdit2.h"
#include "models/stdit/stdit3.h"
#include "tests/models/stdit/component.h"
#include "tests/support/degrees.h"
#include "tests/support/golden.h"

namespace tessera::models {
namespace {

constexpr double kTolerance = 2e-5;  // of the largest value, in fp32

struct Way {
  const char* name;
  parallel::ParallelOptions options;
};

// Every exact method. A pipeline is exact in its warm-up, in which it takes everything at once.
std::vector<Way> ways() {
  using parallel::degrees;
  parallel::ParallelOptions pipeline = degrees(1, false, 2, 1, 1, 1);
  pipeline.warmup_steps = 4;
  // Ranks of Ulysses divide frames by default (DSP).
  parallel::ParallelOptions heads = degrees(1, false, 1, 1, 2, 1);
  heads.dynamic_sequence_parallel = false;
  parallel::ParallelOptions frames = degrees(1, false, 1, 1, 3, 1);
  frames.dynamic_sequence_parallel = true;
  // Ranks divide frames where each patch has but one row.
  parallel::ParallelOptions frames_of_rows = degrees(1, false, 2, 2, 1, 1);
  frames_of_rows.num_pipeline_patch = 5;
  frames_of_rows.pipeline_patch_axis = parallel::GridAxis::kRows;
  frames_of_rows.warmup_steps = 4;
  return {{"Heads2", heads},
          {"FramesOfRows", frames_of_rows},
          {"Frames3", frames},
          {"One", degrees(1, false, 1, 1, 1, 1)},
          {"Ulysses2", degrees(1, false, 1, 1, 2, 1)},
          {"Ring2", degrees(1, false, 1, 2, 1, 1)},
          {"Ring3", degrees(1, false, 1, 3, 1, 1)},
          {"Tensor2", degrees(1, false, 1, 1, 1, 2)},
          {"Pipeline2", pipeline},
          {"RingOfUlysses", degrees(1, false, 1, 2, 2, 1)},
          {"RingOfTensor", degrees(1, false, 1, 3, 1, 2)}};
}

class STDiTOnRanks : public ::testing::TestWithParam<std::tuple<const char*, size_t>> {};

TEST_P(STDiTOnRanks, EqualsTheReference) {
  const auto& [name, way] = GetParam();
  const std::filesystem::path folder = golden_folder("opensora");
  const auto expected = read_tensors(folder / fmt::format("{}.io.safetensors", name));
  const auto outputs = run_component(folder / fmt::format("{}.json", name), ways()[way].options);
  ASSERT_FALSE(outputs.empty());
  for (const auto& [key, value] : outputs)
    EXPECT_LE(relative_error(value, expected.at(key)), kTolerance) << key;
}

// PipeFusion's patches, against tools/golden/stdit_patches.py, whose networks share no code with
// these.
struct Patches {
  parallel::GridAxis axis;
  int64_t patches, warmup_steps;
};

class STDiTPipeFusionOnRanks
    : public ::testing::TestWithParam<std::tuple<Patches, parallel::ParallelOptions>> {};

TEST_P(STDiTPipeFusionOnRanks, EqualsTheDefinition) {
  auto [patches, options] = GetParam();
  options.num_pipeline_patch = patches.patches;
  options.pipeline_patch_axis = patches.axis;
  options.warmup_steps = patches.warmup_steps;
  const std::filesystem::path folder = golden_folder("opensora");
  const std::string key = fmt::format("out.z.{}.{}.{}", patches.axis == parallel::GridAxis::kRows ? 'h' : 't',
                                      patches.patches, patches.warmup_steps);
  const at::Tensor expected = read_tensors(folder / "stdit3_pipefusion.safetensors").at(key);
  const auto outputs = run_component(folder / "rflow_plain.json", options);
  EXPECT_LE(relative_error(outputs.at("out.z"), expected), kTolerance) << key;
}

INSTANTIATE_TEST_SUITE_P(Goldens, STDiTPipeFusionOnRanks,
                         ::testing::Combine(::testing::Values(Patches{parallel::GridAxis::kRows, 2, 1},
                                                              Patches{parallel::GridAxis::kRows, 3, 2},
                                                              Patches{parallel::GridAxis::kRows, 5, 0},
                                                              Patches{parallel::GridAxis::kFrames, 2, 1},
                                                              Patches{parallel::GridAxis::kFrames, 5, 2},
                                                              Patches{parallel::GridAxis::kFrames, 3, 0}),
                                            ::testing::Values(parallel::degrees(1, false, 2, 1, 1, 1),
                                                              parallel::degrees(1, true, 3, 1, 1, 1),
                                                              parallel::degrees(2, false, 2, 1, 1, 2))));

// With ranks that divide each patch, along its own axis or along the other one.
INSTANTIATE_TEST_SUITE_P(GoldensOfSequences, STDiTPipeFusionOnRanks,
                         ::testing::Combine(::testing::Values(Patches{parallel::GridAxis::kRows, 2, 1},
                                                              Patches{parallel::GridAxis::kRows, 5, 0},
                                                              Patches{parallel::GridAxis::kFrames, 2, 1},
                                                              Patches{parallel::GridAxis::kFrames, 5, 2}),
                                            ::testing::Values(parallel::degrees(1, false, 2, 1, 2, 1),
                                                              parallel::degrees(1, false, 2, 2, 1, 1),
                                                              parallel::degrees(1, false, 2, 2, 2, 1))));

// Displaced patches of rows, against the same script.
class STDiTDisplacedOnRanks : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, bool>> {};

TEST_P(STDiTDisplacedOnRanks, EqualsTheDefinition) {
  const auto [patches, warmup_steps, cfg] = GetParam();
  parallel::ParallelOptions options;
  options.displaced_patch_degree = patches;
  options.warmup_steps = warmup_steps;
  options.use_cfg_parallel = cfg;
  const std::filesystem::path folder = golden_folder("opensora");
  const at::Tensor expected = read_tensors(folder / "stdit3_displaced.safetensors")
                                  .at(fmt::format("out.z.{}.{}", patches, warmup_steps));
  EXPECT_LE(relative_error(run_component(folder / "rflow_plain.json", options).at("out.z"), expected),
            kTolerance);
}

INSTANTIATE_TEST_SUITE_P(Goldens, STDiTDisplacedOnRanks,
                         ::testing::Values(std::tuple(2, 1, false), std::tuple(2, 1, true),
                                           std::tuple(3, 2, false), std::tuple(3, 2, true)));

TEST(STDiTDisplacedOnRanks, EqualsOneRankInFullSync) {
  parallel::ParallelOptions options;
  options.displaced_patch_degree = 3;
  options.displaced_mode = parallel::DisplacedMode::kFullSync;
  const std::filesystem::path folder = golden_folder("opensora");
  const at::Tensor expected = read_tensors(folder / "rflow_plain.io.safetensors").at("out.z");
  EXPECT_LE(relative_error(run_component(folder / "rflow_plain.json", options).at("out.z"), expected),
            kTolerance);
}

// Ranks divide the rows, of which there may be fewer than ranks.
class VideoVaeOnRanks : public ::testing::TestWithParam<int64_t> {};

void expect_vae(const std::string& name, int64_t ranks, size_t count) {
  const std::filesystem::path folder = golden_folder("opensora");
  const auto expected = read_tensors(folder / (name + ".io.safetensors"));
  parallel::ParallelOptions options;
  options.nproc = ranks;
  const auto outputs = run_component(folder / (name + ".json"), options);
  ASSERT_EQ(outputs.size(), count);
  for (const auto& [key, value] : outputs)
    EXPECT_LE(relative_error(value, expected.at(key)), kTolerance) << key;
}

TEST_P(VideoVaeOnRanks, CodesAClipAsThePublicCode) {
  expect_vae("vae_temporal", GetParam(), 12);
}

// tools/golden/video_vae.py made this one. Odd sides lose what is beyond their last eight pixels.
TEST_P(VideoVaeOnRanks, CodesAVideo) {
  expect_vae("video_vae", GetParam(), 16);
}

INSTANTIATE_TEST_SUITE_P(Goldens, VideoVaeOnRanks, ::testing::Values(1, 2, 3, 4));

// The released sizes, from their configs alone.
TEST(STDiT, HasTheParametersOfTheReleasedModels) {
  const auto parameters = [](const Json& json, const auto& make) {
    weights::ShapeOnlySource source;
    const STDiTConfig config(JsonConfig(json, "config.json"));
    make(weights::Scope(source, {.device = at::kMeta}), config, LocalBlocks(config.depth),
         Range{0, config.out_channels()});
    // The learned text is a buffer.
    return static_cast<int64_t>(source.bytes_held()) / 4 - config.model_max_length * config.caption_channels;
  };
  // Rotations are computed, where the checkpoint holds their D / 2 frequencies.
  const int64_t rotations = 1152 / 16 / 2;
  EXPECT_EQ(parameters(Json::object(), [](auto&&... all) { STDiT3(all...); }) + rotations, 1'207'643'972);
  EXPECT_EQ(parameters({{"model_max_length", 200}}, [](auto&&... all) { STDiT2(all...); }) + rotations,
            767'452'100);
}

INSTANTIATE_TEST_SUITE_P(Goldens, STDiTOnRanks,
                         ::testing::Combine(::testing::Values("stdit2_a", "stdit3_a", "stdit3_b",
                                                              "rflow_plain", "rflow_masked", "iddpm_masked"),
                                            ::testing::Range(size_t{0}, ways().size())),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param),
                                              ways()[std::get<1>(info.param)].name);
                         });

}  // namespace
}  // namespace tessera::models
