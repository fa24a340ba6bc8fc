// Runs the whole denoising loop of Z-Image on the tiny transformer of tests/golden/z-image: on one rank
// against the latents of diffusers' pipeline, and on ranks, which are threads, against one.
#include "models/z_image.h"

#include <gtest/gtest.h>

#include "tests/support/degrees.h"
#include "tests/support/denoiser_loop.h"
#include "tests/support/golden.h"

namespace tessera::engine {
namespace {

constexpr int64_t kZImageSteps = 4, kZImageHeads = 5;
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
  const DenoiserLoop loop = z_image_loop({kZImageScale});
  const std::vector<parallel::ParallelOptions> all = exact_layouts(GetParam(), kZImageHeads);
  const at::Tensor expected = latents_of_rank_loop(loop);
  const std::vector<at::Tensor> results = latents_of_rank_loops(loop, all);
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_LE(deviation_from(results[i], expected), 1e-4) << parallel::degrees_text(all[i]);
}

INSTANTIATE_TEST_SUITE_P(Ranks, ZImageOnRanks, ::testing::Values(2, 3, 4));

// The oracle of tools/make_golden_z_image.py evaluates diffusers' layers with keys and values that it keeps
// by the definition of each method, after one step of warm-up.
void expect_z_image_oracle(const std::string& way, int64_t parts, const parallel::ParallelOptions& options) {
  const at::Tensor expected = z_image_golden().at(fmt::format("loop.{}.{}", way, parts));
  EXPECT_GE(deviation_from(expected, z_image_golden().at("loop.turbo")), 1e-1);
  EXPECT_LE(deviation_from(latents_of_rank_loop(z_image_loop({}), options), expected), 1e-4)
      << way << " " << parts << ", " << parallel::degrees_text(options);
}

TEST(ZImageOnStaleRanks, PipeFusionEqualsTheOracle) {
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
      expect_z_image_oracle("pipefusion", patches, options);
    }
  }
}

TEST(ZImageOnStaleRanks, DisplacedPatchesEqualTheOracle) {
  for (const int64_t parts : {2, 3}) {
    for (parallel::ParallelOptions options :
         {parallel::ParallelOptions{}, parallel::degrees(1, false, 1, 1, 1, 2)}) {
      options.displaced_patch_degree = parts;
      options.warmup_steps = 1;
      expect_z_image_oracle("displaced", parts, options);
    }
  }
}

}  // namespace
}  // namespace tessera::engine
