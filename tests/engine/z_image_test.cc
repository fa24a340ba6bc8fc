// Runs the whole denoising loop of Z-Image on the tiny transformer of tests/golden/z-image: on one rank
// against the latents of diffusers' pipeline, and on ranks, which are threads, against one.
#include "models/z_image.h"

#include <gtest/gtest.h>

#include "tests/support/degrees.h"
#include "tests/support/denoiser_loop.h"
#include "tests/support/golden.h"

namespace tessera::engine {
namespace {

constexpr int64_t kZImageSteps = 4;
constexpr double kZImageScale = 1.5;

const std::map<std::string, at::Tensor>& z_image_golden() {
  static const std::map<std::string, at::Tensor> golden = read_golden("z-image/golden/golden.safetensors");
  return golden;
}

// What diffusers' pipeline takes.
struct ZImageGuidance {
  double scale = 0, normalization = 0, truncation = 1;
};

// Two pictures have the prompt of 35 tokens and one that of 32; the negative one has 5.
DenoiserLoop z_image_loop(const ZImageGuidance& guidance) {
  const models::ZImageConfig config(JsonConfig::read(golden_folder("z-image") / "config.json"));
  DenoiserLoop loop;
  loop.folder = "z-image";
  loop.shape = {.heads = config.n_heads,
                .blocks = config.blocks(),
                .latent_channels = config.in_channels,
                .patch = {1, 2, 2}};
  loop.load = [config](const weights::Scope& scope, const models::LocalBlocks& local_blocks) {
    return std::make_unique<models::ZImageTransformer>(scope, config, local_blocks);
  };
  loop.make_sampler = [] {
    return samplers::make_sampler(
        JsonConfig(Json{{"_class_name", "FlowMatchEulerDiscreteScheduler"}, {"shift", 3.0}}, "scheduler"),
        std::nullopt, {.steps = kZImageSteps, .has_even_sigmas = true});
  };
  for (const char* name : {"prompt.0", "prompt.1", "prompt.2"})
    loop.prompts.push_back({{models::kTokens, z_image_golden().at(name)}});
  loop.guidance.normalization = guidance.normalization;
  loop.guidance.truncation = guidance.truncation;
  for (const int64_t prompt : {1, 2, 1}) loop.guidance.add(prompt, 0, guidance.scale + 1);
  loop.latents = z_image_golden().at("latents");
  return loop;
}

// By the names of the golden.
const std::map<std::string, ZImageGuidance> kZImageGuidances = {
    {"turbo", {}},
    {"guided", {kZImageScale}},
    {"below_one", {0.5}},
    {"normalized", {kZImageScale, 1}},
    {"truncated", {.scale = kZImageScale, .truncation = 0.2}}};

TEST(ZImageLoop, EqualsDiffusers) {
  for (const auto& [name, guidance] : kZImageGuidances) {
    const at::Tensor latents = latents_of_rank_loop(z_image_loop(guidance));
    EXPECT_LE(deviation_from(latents, z_image_golden().at("loop." + name)), 1e-4) << name;
  }
}

// Norms are those of whole pictures, of which the ranks have rows.
TEST(ZImageGuidanceOnRanks, EqualsDiffusers) {
  for (const auto& [name, guidance] : kZImageGuidances) {
    for (const bool cfg : {false, true}) {
      const parallel::ParallelOptions options = parallel::degrees(1, cfg, 1, 1, 2, 1);
      if (cfg && guidance.scale == 0) continue;
      const at::Tensor latents = latents_of_rank_loop(z_image_loop(guidance), options);
      EXPECT_LE(deviation_from(latents, z_image_golden().at("loop." + name)), 1e-4) << name << cfg;
    }
  }
}

// Five heads, 28 tokens in four rows, which are filled up to 32, and texts of three lengths in one batch.
class ZImageOnRanks : public ::testing::TestWithParam<int64_t> {};

TEST_P(ZImageOnRanks, ExactMethodsEqualOneRank) {
  expect_exact_methods(z_image_loop({kZImageScale}), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Ranks, ZImageOnRanks, ::testing::Values(2, 3, 4));

// tools/golden/z_image.py evaluates diffusers' layers with keys and values that it keeps by the
// definition of each method.
TEST(ZImageOnStaleRanks, PipeFusionEqualsTheOracle) {
  expect_stale_oracle("pipefusion", z_image_loop({}), z_image_golden(), z_image_golden().at("loop.turbo"));
}

TEST(ZImageOnStaleRanks, DisplacedPatchesEqualTheOracle) {
  expect_stale_oracle("displaced", z_image_loop({}), z_image_golden(), z_image_golden().at("loop.turbo"));
}

}  // namespace
}  // namespace tessera::engine
