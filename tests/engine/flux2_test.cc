// Runs the whole denoising loop of FLUX.2 on the tiny transformer of tests/golden/flux2: on one rank against
// the latents of diffusers' pipeline, and on ranks, which are threads, against one.
#include "models/flux2.h"

#include <gtest/gtest.h>

#include "tests/support/degrees.h"
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

using Flux2References = std::vector<at::Tensor>;

// Those of the golden, of 9 and of 10 tokens, or none.
Flux2References flux2_references(bool are_given = true) {
  if (!are_given) return {};
  return {flux2_golden().at("reference.0"), flux2_golden().at("reference.1")};
}

// Latents after all steps, `loop.NAME`: of runs without references, or with those.
std::map<std::string, at::Tensor> flux2_loops(bool with_references) {
  const std::string prefix = "loop.references.";
  if (!with_references) return flux2_golden();
  std::map<std::string, at::Tensor> loops;
  for (const auto& [name, latents] : flux2_golden()) {
    if (name.starts_with(prefix)) loops["loop." + name.substr(prefix.size())] = latents;
  }
  return loops;
}

// Two pictures of one prompt and one of another.
DenoiserLoop flux2_loop(double scale, const Flux2References& references = {}) {
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
  loop.references = references;
  return loop;
}

TEST(Flux2RankLoop, EqualsDiffusers) {
  for (const auto& [name, scale] : {std::pair("unguided", 1.0), {"guided", kFlux2Scale}}) {
    for (const bool refers : {false, true}) {
      EXPECT_LE(deviation_from(latents_of_rank_loop(flux2_loop(scale, flux2_references(refers))),
                               flux2_loops(refers).at(fmt::format("loop.{}", name))),
                1e-4)
          << name << " " << refers;
    }
  }
  EXPECT_GE(deviation_from(flux2_loops(true).at("loop.guided"), flux2_loops(false).at("loop.guided")), 1e-1);
}

// One of the references is the same for all pictures, the other is one of each.
TEST(Flux2RankLoop, PicturesHaveReferencesOfTheirOwn) {
  Flux2References references = flux2_references();
  references[1] = at::concat({references[1], references[1] * 2, references[1].flip(0).neg()});
  const DenoiserLoop loop = flux2_loop(kFlux2Scale, references);
  const at::Tensor all = latents_of_rank_loop(loop);
  const std::vector<int64_t> prompts = {1, 2, 1};
  for (int64_t i = 0; i < 3; ++i) {
    DenoiserLoop one = loop;
    one.guidance = {};
    one.guidance.add(prompts[static_cast<size_t>(i)], 0, kFlux2Scale);
    one.latents = loop.latents.narrow(0, i, 1);
    one.references = {references[0], references[1].narrow(0, i, 1)};
    EXPECT_LE(deviation_from(all.narrow(0, i, 1), latents_of_rank_loop(one)), 1e-4) << i;
  }
  for (const parallel::ParallelOptions& options :
       {parallel::degrees(3, false, 1, 1, 1, 1), parallel::degrees(1, true, 1, 1, 1, 1),
        parallel::degrees(2, true, 1, 1, 1, 1), parallel::degrees(1, false, 1, 1, 2, 1)}) {
    EXPECT_LE(deviation_from(latents_of_rank_loop(loop, options), all), 1e-4)
        << parallel::degrees_text(options);
  }
}

// Five heads, 28 tokens in four rows, 19 of references, and seven of a text.
class Flux2OnRanks : public ::testing::TestWithParam<int64_t> {};

TEST_P(Flux2OnRanks, ExactMethodsEqualOneRank) {
  expect_exact_methods(flux2_loop(kFlux2Scale), GetParam());
}

TEST_P(Flux2OnRanks, ExactMethodsEqualOneRankWithReferences) {
  expect_exact_methods(flux2_loop(kFlux2Scale, flux2_references()), GetParam());
}

// Some ranks have no token of the reference.
TEST_P(Flux2OnRanks, ExactMethodsEqualOneRankWithAReferenceOfOneToken) {
  const at::Tensor token = flux2_golden().at("reference.0").narrow(2, 0, 1).narrow(3, 0, 1);
  expect_exact_methods(flux2_loop(kFlux2Scale, {token}), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Ranks, Flux2OnRanks, ::testing::Values(2, 3, 4));

// tools/golden/flux2.py evaluates diffusers' layers with keys and values that it keeps by the definition
// of each method. Stages of five blocks, two of which are double, are uneven.
void expect_flux2_oracle(const std::string& way) {
  for (const bool refers : {false, true}) {
    const auto loops = flux2_loops(refers);
    expect_stale_oracle(way, flux2_loop(1, flux2_references(refers)), loops, loops.at("loop.unguided"));
  }
}

TEST(Flux2OnStaleRanks, PipeFusionEqualsTheOracle) {
  expect_flux2_oracle("pipefusion");
}

// The reference of one token belongs to one rank in one patch.
TEST(Flux2OnStaleRanks, PipeFusionWithAReferenceOfOneToken) {
  const at::Tensor token = flux2_golden().at("reference.1").narrow(2, 0, 1).narrow(3, 0, 1);
  const auto latents = [&](parallel::ParallelOptions options) {
    options.warmup_steps = 1;
    options.num_pipeline_patch = 2;
    return latents_of_rank_loop(flux2_loop(1, {token}), options);
  };
  const at::Tensor expected = latents(parallel::degrees(1, false, 2, 1, 1, 1));
  for (const parallel::ParallelOptions& options :
       {parallel::degrees(1, false, 2, 1, 2, 1), parallel::degrees(1, false, 2, 2, 1, 1),
        parallel::degrees(1, false, 2, 1, 1, 1, 2)})
    EXPECT_LE(deviation_from(latents(options), expected), 1e-4) << parallel::degrees_text(options);
}

TEST(Flux2OnStaleRanks, DisplacedPatchesEqualTheOracle) {
  expect_flux2_oracle("displaced");
}

}  // namespace
}  // namespace tessera::engine
