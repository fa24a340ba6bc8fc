// Runs the whole denoising loop of Z-Image on the tiny transformer of tests/golden/z-image: on one rank
// against the latents of diffusers' pipeline, and on ranks, which are threads, against one.
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "comm/collectives.h"
#include "engine/denoise.h"
#include "models/z_image.h"
#include "tests/support/degrees.h"
#include "tests/support/golden.h"
#include "tests/support/rank_threads.h"
#include "weights/checkpoint.h"

namespace tessera::engine {
namespace {

constexpr int64_t kZImagePictures = 3, kZImageSteps = 4;
constexpr double kZImageScale = 1.5;

const std::map<std::string, at::Tensor>& z_image_golden() {
  static const std::map<std::string, at::Tensor> golden = read_golden("z-image/golden/golden.safetensors");
  return golden;
}

models::ZImageConfig z_image_config() {
  return models::ZImageConfig(JsonConfig::read(golden_folder("z-image") / "config.json"));
}

models::DenoiserShape z_image_shape() {
  const models::ZImageConfig config = z_image_config();
  return {.heads = config.n_heads,
          .blocks = config.blocks(),
          .latent_channels = config.in_channels,
          .patch = {1, 2, 2}};
}

// What diffusers' pipeline takes.
struct ZImageGuidance {
  double scale = 0, normalization = 0, truncation = 1;
};

// Two pictures have the prompt of 35 tokens and one that of 32; the negative one has 5.
at::Tensor z_image_loop(const parallel::Ranks& ranks, const ZImageGuidance& guidance) {
  const c10::InferenceMode inference_mode;
  const models::ZImageConfig config = z_image_config();
  weights::Checkpoint checkpoint(golden_folder("z-image"), weights::Library::kDiffusers);
  std::optional<Range> blocks;
  if (ranks.pipeline.size > 1) blocks = ranks.layout.stage(ranks.pipeline.rank);
  const models::ZImageTransformer denoiser(
      {checkpoint, {.dtype = at::kFloat, .groups = {ranks.tensor_inner, ranks.tensor_outer}}}, config,
      models::LocalBlocks(config.blocks(), blocks));
  std::vector<models::Conditioning> prompts;
  for (const char* name : {"prompt.0", "prompt.1", "prompt.2"})
    prompts.push_back({{models::kTokens, z_image_golden().at(name)}});
  Guidance branches{
      .pictures = {}, .normalization = guidance.normalization, .truncation = guidance.truncation};
  for (const int64_t prompt : {1, 2, 1}) branches.add(prompt, 0, guidance.scale + 1);
  const at::Tensor z = z_image_golden().at("latents");
  const models::LatentShape latent_shape{z.size(2), z.size(3), 8};
  const auto sampler = samplers::make_sampler(
      JsonConfig(Json{{"_class_name", "FlowMatchEulerDiscreteScheduler"}, {"shift", 3.0}}, "scheduler"),
      std::nullopt, {.steps = kZImageSteps, .has_even_sigmas = true});
  DenoiserStage stage(denoiser, z_image_shape(), prompts, branches.samples(ranks), latent_shape, ranks);
  Noise noise({{0, kZImagePictures}});
  std::vector<double> seconds;
  at::Tensor result = denoise({stage, *sampler, branches, ranks}, z, noise, {}, seconds);
  if (!result.defined() || ranks.data.size == 1) return result;
  std::vector<at::Tensor> parts;
  for (const Range& part : ranks.data.parts(kZImagePictures))
    parts.push_back(at::empty_like(z.narrow(0, part.begin, part.length)));
  comm::gather(result.contiguous(), ranks.data.rank == 0 ? parts : std::vector<at::Tensor>(), 0, ranks.data);
  return at::concat(parts);
}

double z_image_deviation(const at::Tensor& x, const at::Tensor& expected) {
  return ((x - expected).abs().max() / expected.std()).item<double>();
}

// Returns the latents of rank 0 with each of the options, which have one number of ranks.
std::vector<at::Tensor> z_image_on_ranks(const std::vector<parallel::ParallelOptions>& all,
                                         const ZImageGuidance& guidance) {
  std::vector<at::Tensor> results(all.size());
  const models::ZImageConfig config = z_image_config();
  comm::run_ranks_as_threads(all.front().degrees(), [&](comm::World world) {
    for (size_t i = 0; i < all.size(); ++i) {
      const parallel::Workload workload{.heads = config.n_heads,
                                        .blocks = config.blocks(),
                                        .token_rows = z_image_golden().at("latents").size(2) / 2,
                                        .steps = kZImageSteps,
                                        .pictures = kZImagePictures,
                                        .guided = true};
      const parallel::Ranks ranks(world, parallel::resolve_layout(all[i], workload, std::nullopt));
      const at::Tensor own = z_image_loop(ranks, guidance);
      if (world.rank() == 0) results[i] = own;
    }
  });
  return results;
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
    const at::Tensor latents = z_image_on_ranks({parallel::ParallelOptions{}}, guidance).front();
    EXPECT_LE(z_image_deviation(latents, z_image_golden().at("loop." + name)), 1e-4) << name;
  }
}

// Norms are those of whole pictures, of which the ranks have rows.
TEST(ZImageGuidanceOnRanks, EqualsDiffusers) {
  for (const auto& [name, guidance] : kZImageGuidances) {
    for (const bool cfg : {false, true}) {
      const parallel::ParallelOptions options = parallel::degrees(1, cfg, 1, 1, 2, 1);
      if (cfg && guidance.scale == 0) continue;
      const at::Tensor latents = z_image_on_ranks({options}, guidance).front();
      EXPECT_LE(z_image_deviation(latents, z_image_golden().at("loop." + name)), 1e-4) << name << cfg;
    }
  }
}

// Five heads, 28 tokens in four rows, which are filled up to 32, and texts of three lengths in one batch.
class ZImageOnRanks : public ::testing::TestWithParam<int64_t> {};

TEST_P(ZImageOnRanks, ExactMethodsEqualOneRank) {
  std::vector<parallel::ParallelOptions> all;
  for (const int64_t dp : {1, 2, 3}) {
    for (const bool cfg : {false, true}) {
      for (const int64_t ring : {1, 2, 3, 4}) {
        for (const int64_t ulysses : {1, 2, 3, 4}) {
          for (const int64_t tp : {1, 2, 3, 4}) {
            for (const int64_t gather : {1, 2, 3, 4}) {
              parallel::ParallelOptions options = parallel::degrees(dp, cfg, 1, ring, ulysses, tp, gather);
              if (options.degrees() != GetParam() || tp * ulysses > 5) continue;
              all.push_back(options);
              if (tp != 4) continue;
              options.split_scheme = parallel::SplitScheme::k2d;
              all.push_back(options);
            }
          }
        }
      }
    }
  }
  // Where all blocks of a step take all patches, PipeFusion is exact.
  parallel::ParallelOptions pipeline = parallel::degrees(1, false, GetParam(), 1, 1, 1);
  pipeline.num_pipeline_patch = 1;
  all.push_back(pipeline);
  parallel::ParallelOptions displaced;
  displaced.displaced_patch_degree = GetParam();
  displaced.displaced_mode = parallel::DisplacedMode::kFullSync;
  all.push_back(displaced);
  const at::Tensor expected = z_image_on_ranks({parallel::ParallelOptions{}}, {kZImageScale}).front();
  const std::vector<at::Tensor> results = z_image_on_ranks(all, {kZImageScale});
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_LE(z_image_deviation(results[i], expected), 1e-4) << parallel::degrees_text(all[i]);
}

INSTANTIATE_TEST_SUITE_P(Ranks, ZImageOnRanks, ::testing::Values(2, 3, 4));

// The oracle of tools/make_golden_z_image.py evaluates diffusers' layers with keys and values that it keeps
// by the definition of each method, after one step of warm-up.
void expect_z_image_oracle(const std::string& way, int64_t parts, const parallel::ParallelOptions& options) {
  const at::Tensor expected = z_image_golden().at(fmt::format("loop.{}.{}", way, parts));
  EXPECT_GE(z_image_deviation(expected, z_image_golden().at("loop.turbo")), 1e-1);
  EXPECT_LE(z_image_deviation(z_image_on_ranks({options}, {}).front(), expected), 1e-4)
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
