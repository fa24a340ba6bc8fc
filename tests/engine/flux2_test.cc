// Runs the whole denoising loop of FLUX.2 on the tiny transformer of tests/golden/flux2: on one rank against
// the latents of diffusers' pipeline, and on ranks, which are threads, against one.
#include "models/flux2.h"

#include <gtest/gtest.h>

#include "tests/support/degrees.h"
#include "tests/support/denoiser_loop.h"
#include "tests/support/golden.h"

namespace tessera::engine {
namespace {

constexpr int64_t kFlux2Steps = 4, kFlux2Heads = 5;
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
  const DenoiserLoop loop = flux2_loop(kFlux2Scale);
  const std::vector<parallel::ParallelOptions> all = exact_layouts(GetParam(), kFlux2Heads);
  const at::Tensor expected = latents_of_rank_loop(loop);
  const std::vector<at::Tensor> results = latents_of_rank_loops(loop, all);
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_LE(deviation_from(results[i], expected), 1e-4) << parallel::degrees_text(all[i]);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Flux2OnRanks, ::testing::Values(2, 3, 4));

// The oracle of tools/make_golden_flux2.py evaluates diffusers' layers with keys and values that it keeps by
// the definition of each method, after one step of warm-up.
void expect_flux2_oracle(const std::string& way, int64_t parts, const parallel::ParallelOptions& options) {
  const at::Tensor expected = flux2_golden().at(fmt::format("loop.{}.{}", way, parts));
  EXPECT_GE(deviation_from(expected, flux2_golden().at("loop.unguided")), 1e-1);
  EXPECT_LE(deviation_from(latents_of_rank_loop(flux2_loop(1), options), expected), 1e-4)
      << way << " " << parts << ", " << parallel::degrees_text(options);
}

// Stages of five blocks, two of which are double, are uneven.
TEST(Flux2OnStaleRanks, PipeFusionEqualsTheOracle) {
  for (parallel::ParallelOptions options :
       {parallel::degrees(1, false, 2, 1, 1, 1), parallel::degrees(1, false, 3, 1, 1, 1),
        parallel::degrees(1, false, 2, 1, 2, 1), parallel::degrees(1, false, 2, 2, 1, 1),
        parallel::degrees(1, false, 2, 1, 1, 1, 2), parallel::degrees(1, false, 2, 1, 1, 2),
        parallel::degrees(2, false, 2, 1, 1, 1)}) {
    options.warmup_steps = 1;
    const bool divides_patches = options.ulysses_degree * options.ring_degree * options.kv_gather_degree > 1;
    for (const int64_t patches : {2, 3}) {
      if (patches == 3 && divides_patches) continue;  // there are four rows of tokens
      options.num_pipeline_patch = patches;
      expect_flux2_oracle("pipefusion", patches, options);
    }
  }
}

TEST(Flux2OnStaleRanks, DisplacedPatchesEqualTheOracle) {
  for (const int64_t parts : {2, 3}) {
    for (parallel::ParallelOptions options :
         {parallel::ParallelOptions{}, parallel::degrees(1, false, 1, 1, 1, 2)}) {
      options.displaced_patch_degree = parts;
      options.warmup_steps = 1;
      expect_flux2_oracle("displaced", parts, options);
    }
  }
}

}  // namespace
}  // namespace tessera::engine
