// These tests compare FLUX.2 dev with diffusers, from the prompt to the pixels, on one rank and on many, and
// what its models and requests may say. Where it is as FLUX.2 klein, tests of that are enough.
#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/lone_denoiser.h"
#include "tests/support/degrees.h"
#include "tests/support/generate.h"
#include "tests/support/golden.h"
#include "tests/support/golden_folder_fixture.h"
#include "tests/support/tiny_pipeline.h"

namespace tessera::engine {
namespace {

Request dev_request() {
  Request request = small_request();
  request.max_sequence_length = 160;
  return request;
}

// CFG parallelism has nothing to divide. PipeFusion is exact where all blocks of a step take all patches.
void expect_dev_on_ranks(int64_t ranks, const std::string& run) {
  std::vector<parallel::ParallelOptions> methods = exact_methods(ranks);
  std::erase_if(methods, [](const parallel::ParallelOptions& options) { return options.use_cfg_parallel; });
  methods.push_back(parallel::degrees(1, false, ranks, 1, 1, 1));
  methods.back().num_pipeline_patch = 1;
  dev_pipeline().expect_golden_on_ranks(ranks, {run}, methods);
}

// Latents come as tokens, as diffusers gives them for the output type "latent".
TEST(Flux2Dev, EqualsDiffusers) {
  dev_pipeline().expect_golden({"guided", "default", "edited"});
}

TEST(Flux2Dev, IsTheSameOnManyRanks) {
  for (const int64_t ranks : {2, 3}) expect_dev_on_ranks(ranks, "guided");
  expect_dev_on_ranks(2, "edited");
}

// The scale is an input, of each picture of a batch for itself.
TEST(Flux2Dev, TakesTheGuidanceScale) {
  std::vector<Settings> batch;
  for (const double scale : {0.0, 1.0, 2.5}) {
    Request request = dev_request();
    request.guidance_scale = scale;
    batch.push_back(resolve(request, tiny_dev()));
    EXPECT_FALSE(batch.back().guided() || workload(batch.back(), tiny_dev()).guided);
    EXPECT_TRUE(batch.back().warnings.empty());
  }
  Engine engine(tiny_dev(), /*budget=*/0);
  const std::vector<Result> together = engine.run(batch);
  for (size_t i = 0; i < batch.size(); ++i)
    EXPECT_LE(relative_error(together[i].latents, engine.run(batch[i]).latents), 1e-5) << i;
  EXPECT_GE(relative_error(together[0].latents, together[1].latents), 1e-2);
  EXPECT_GE(relative_error(together[1].latents, together[2].latents), 1e-2);
}

TEST(Flux2Dev, HasThePipelinesDefaults) {
  Request request;
  request.prompts = {"a cat"};
  request.negative_prompts = {"blurry"};
  const Settings settings = resolve(request, tiny_dev());
  EXPECT_EQ(settings.steps, 50);
  EXPECT_EQ(settings.guidance, 4);
  EXPECT_EQ(settings.height, 1024);
  EXPECT_EQ(settings.width, 1024);
  EXPECT_EQ(settings.max_sequence_length, 512);
  ASSERT_EQ(settings.warnings.size(), 1U);
  EXPECT_EQ(
      spell(settings.warnings[0]),
      "negative_prompt has no effect: the model takes guidance_scale as an input and has no negative branch");
}

class Flux2DevFolder : public GoldenFolderFixture {
 protected:
  void SetUp() override { copy_golden("tiny-flux2-dev"); }
};

// diffusers' pipeline would run it, without an effect of the scale.
TEST_F(Flux2DevFolder, RefusesATransformerThatDoesNotTakeTheGuidanceScale) {
  change("transformer/config.json", {{"guidance_embeds", false}});
  EXPECT_NE(
      refusal_with_code([&] {
        read_model(folder_);
      }).find("'guidance_embeds' must be true, as in FLUX.2 dev; that of FLUX.2 klein is false, got false"),
      std::string::npos);
  EXPECT_EQ(read_lone_denoiser(folder_ / "transformer").family->class_name, "Flux2KleinPipeline");
  change("transformer/config.json", {{"guidance_embeds", nullptr}});  // as by default
  EXPECT_TRUE(read_model(folder_).shape.takes_guidance_scale);
}

}  // namespace
}  // namespace tessera::engine
