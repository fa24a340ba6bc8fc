// Runs the whole denoising loop of FLUX.2 on the tiny transformer of tests/golden/flux2: on one rank against
// the latents of diffusers' pipeline, and on ranks, which are threads, against one.
#include "models/flux2.h"

#include <gtest/gtest.h>

#include "tests/support/denoiser_loop.h"
#include "tests/support/golden.h"

namespace tessera::engine {
namespace {

constexpr int64_t kFlux2Steps = 4;
constexpr double kFlux2Scale = 2.5;

const std::map<std::string, at::Tensor>& flux2_golden() {
  static const std::map<std::string, at::Tensor> golden = read_golden("flux2/golden/golden.safetensors");
  return golden;
}

// Two pictures of one prompt and one of another.
DenoiserLoop flux2_loop(double scale) {
  const models::Flux2Config config(JsonConfig::read(golden_folder("flux2") / "config.json"));
  const at::Tensor z = flux2_golden().at("latents"), prompts = flux2_golden().at("prompts");
  DenoiserLoop loop;
  loop.folder = "flux2";
  loop.shape = {
      .heads = config.num_attention_heads, .blocks = config.blocks(), .latent_channels = config.in_channels};
  loop.load = [config](const weights::Scope& scope, const models::LocalBlocks& local_blocks) {
    return std::make_unique<models::Flux2Transformer>(scope, config, local_blocks);
  };
  loop.make_sampler = [tokens = z.size(2) * z.size(3)] {
    return samplers::make_sampler(
        JsonConfig(Json{{"_class_name", "FlowMatchEulerDiscreteScheduler"},
                        {"shift", 3.0},
                        {"use_dynamic_shifting", true}},
                   "scheduler"),
        std::nullopt,
        {.steps = kFlux2Steps, .has_even_sigmas = true, .mu = models::flux2_mu(tokens, kFlux2Steps)});
  };
  for (int64_t i = 0; i < prompts.size(0); ++i) loop.prompts.push_back({{models::kTokens, prompts[i]}});
  for (const int64_t prompt : {1, 2, 1}) loop.guidance.add(prompt, 0, scale);
  loop.latents = z;
  return loop;
}

TEST(Flux2RankLoop, EqualsDiffusers) {
  for (const auto& [name, scale] : {std::pair("unguided", 1.0), {"guided", kFlux2Scale}}) {
    EXPECT_LE(deviation_from(latents_of_rank_loop(flux2_loop(scale)),
                             flux2_golden().at(fmt::format("loop.{}", name))),
              1e-4)
        << name;
  }
}

// Five heads, 28 tokens in four rows, and seven of a text.
class Flux2OnRanks : public ::testing::TestWithParam<int64_t> {};

TEST_P(Flux2OnRanks, ExactMethodsEqualOneRank) {
  expect_exact_methods(flux2_loop(kFlux2Scale), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Ranks, Flux2OnRanks, ::testing::Values(2, 3, 4));

// tools/make_golden_flux2.py evaluates diffusers' layers with keys and values that it keeps by the definition
// of each method. Stages of five blocks, two of which are double, are uneven.
TEST(Flux2OnStaleRanks, PipeFusionEqualsTheOracle) {
  expect_stale_oracle("pipefusion", flux2_loop(1), flux2_golden(), flux2_golden().at("loop.unguided"));
}

TEST(Flux2OnStaleRanks, DisplacedPatchesEqualTheOracle) {
  expect_stale_oracle("displaced", flux2_loop(1), flux2_golden(), flux2_golden().at("loop.unguided"));
}

}  // namespace
}  // namespace tessera::engine
