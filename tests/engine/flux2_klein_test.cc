// These tests compare FLUX.2 klein with diffusers, from the prompt to the pixels, on one rank and on many,
// and what its models and requests may say.
#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/lone_denoiser.h"
#include "models/flux2.h"
#include "tests/support/degrees.h"
#include "tests/support/generate.h"
#include "tests/support/golden_folder_fixture.h"
#include "tests/support/tiny_pipeline.h"

namespace tessera::engine {
namespace {

Request klein_request() {
  Request request = small_request();
  request.max_sequence_length = 16;
  return request;
}

// PipeFusion is exact where all blocks of a step take all patches.
void expect_golden_on_ranks(const std::string& run) {
  for (const int64_t ranks : {2, 3}) {
    std::vector<parallel::ParallelOptions> methods = exact_methods(ranks);
    methods.push_back(parallel::degrees(1, false, ranks, 1, 1, 1));
    methods.back().num_pipeline_patch = 1;
    klein_pipeline().expect_golden_on_ranks(ranks, {run}, methods);
  }
}

// In each request latents come as diffusers gives them for the output type "latent".
TEST(Flux2Klein, EqualsDiffusers) {
  klein_pipeline().expect_golden({"guided", "unguided"});
}

TEST(Flux2Klein, IsTheSameOnManyRanks) {
  expect_golden_on_ranks("guided");
}

// The first picture says the size of the image where the request does not.
TEST(Flux2Klein, RefersToPicturesAsDiffusers) {
  klein_pipeline().expect_golden({"edited", "edited_two"});
  const Settings settings = klein_pipeline().settings("edited");
  EXPECT_EQ(settings.height, 64);
  EXPECT_EQ(settings.width, 96);
  EXPECT_EQ(settings.request.image_sizes, std::vector<std::string>{"70x101"});
}

TEST(Flux2Klein, RefersToPicturesOnManyRanks) {
  expect_golden_on_ranks("edited_two");
}

// As on ranks that are on other hosts than the files, and for plans.
TEST(Flux2Klein, NeedsNoFilesWhereSizesAreKnown) {
  Request request = klein_pipeline().request("edited");
  const Settings expected = resolve(request, tiny_klein());
  request.images = {"elsewhere.png"};
  EXPECT_NE(refusal_with_code([&] { resolve(request, tiny_klein()); }).find("3 [elsewhere.png]"),
            std::string::npos);
  request.image_sizes = {"70x101"};
  const Settings settings = resolve(request, tiny_klein());
  EXPECT_EQ(settings.latents.latent_width, expected.latents.latent_width);
  ASSERT_EQ(settings.references.size(), 1U);
  EXPECT_EQ(settings.references[0].model_height, 64);
  // The run finds what the request says wrongly before it loads a weight.
  EXPECT_NE(refusal_with_code([&] { generate(settings, tiny_klein()); }).find("3 [elsewhere.png]"),
            std::string::npos);
  request.images.clear();
  EXPECT_EQ(refusal_with_code([&] { generate(resolve(request, tiny_klein()), tiny_klein()); }),
            "2 [image] there is none for image_size, which is enough for a plan or a trace alone; name it");
}

TEST(Flux2Klein, AloneRefersToPictures) {
  Request request = klein_request();
  request.images = {"a.png"};
  const std::string refusal = refusal_with_code([&] { resolve(request, tiny_z_image()); });
  EXPECT_NE(refusal.find("2 [image] Z-Image does not support it"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("it is an option of FLUX.2 klein"), std::string::npos) << refusal;
}

// Those of diffusers' pipeline, whose side depends on the VAE.
TEST(Flux2Klein, HasThePipelinesDefaults) {
  Request request;
  request.prompts = {"a cat"};
  const Settings settings = resolve(request, tiny_klein());
  EXPECT_EQ(settings.steps, 50);
  EXPECT_EQ(settings.guidance, 4);
  EXPECT_TRUE(settings.guided());
  EXPECT_EQ(settings.height, 1024);
  EXPECT_EQ(settings.width, 1024);
  EXPECT_EQ(settings.max_sequence_length, 512);
  EXPECT_TRUE(settings.warnings.empty());
  Model other = tiny_klein();
  other.scale.pixels = 8;
  EXPECT_EQ(resolve(request, other).height, 512);
}

TEST(Flux2Klein, TakesSidesThatArePackedWhole) {
  Request request = klein_request();
  request.height = 40;
  request.width = 8;
  EXPECT_EQ(
      refusal_with_code([&] { resolve(request, tiny_klein()); }),
      "2 [height] 40 is not a multiple of 16; the nearest valid sizes are 32 and 48; [width] 8 is not a "
      "multiple of 16; the nearest valid size is 16");
}

// Results of a batch are divided into groups and requests.
TEST(Flux2Klein, GivesLatentsOfEachRequestOfABatch) {
  Request one = klein_request(), two = klein_request();
  two.prompts = {"a dog", "a house"};
  two.seed = 2;
  const std::vector<Settings> batch = {resolve(one, tiny_klein()), resolve(two, tiny_klein())};
  Engine engine(tiny_klein(), /*budget=*/0);
  const std::vector<Result> together = engine.run(batch);
  for (size_t i = 0; i < batch.size(); ++i) {
    EXPECT_EQ(together[i].latents.sizes(), (std::vector<int64_t>{static_cast<int64_t>(i) + 1, 4, 4, 4}));
    EXPECT_LE(relative_error(together[i].latents, engine.run(batch[i]).latents), 1e-5) << i;
  }
}

class DistilledFlux2Klein : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = tiny_klein();
    model_.is_distilled = true;
  }

  Model model_;
};

TEST_F(DistilledFlux2Klein, EqualsDiffusers) {
  const Settings settings = resolve(klein_pipeline().request("distilled"), model_);
  klein_pipeline().expect_golden(generate(settings, model_), "distilled", "distilled");
  ASSERT_EQ(settings.warnings.size(), 1U);
  EXPECT_EQ(spell(settings.warnings[0]),
            "guidance_scale has no effect: the model is distilled to run without guidance");
  EXPECT_EQ(settings.request.guidance_scale, 1);
}

TEST_F(DistilledFlux2Klein, RunsWithoutGuidance) {
  Request request = klein_request();
  Settings settings = resolve(request, model_);
  EXPECT_EQ(settings.guidance, 1);
  EXPECT_FALSE(settings.guided() || workload(settings, model_).guided);
  EXPECT_TRUE(settings.warnings.empty());
  for (const double scale : {0.5, 1.0}) {  // as without guidance
    request.guidance_scale = scale;
    EXPECT_TRUE(resolve(request, model_).warnings.empty());
  }
  request.negative_prompts = {"blurry"};
  for (const std::optional<double> scale : {std::optional<double>(), {1}}) {
    request.guidance_scale = scale;
    settings = resolve(request, model_);
    ASSERT_EQ(settings.warnings.size(), 1U);
    EXPECT_EQ(spell(settings.warnings[0]),
              "negative_prompt has no effect: the model is distilled to run without guidance");
  }
  EXPECT_NE(parallel::refusal(parallel::degrees(1, true, 1, 1, 1, 1), workload(settings, model_))
                .find("use_cfg_parallel needs guidance, and the model is distilled to run without it"),
            std::string::npos);
}

// As diffusers' pipeline does.
TEST(Flux2Klein, LeavesNoiseLevelsToAFileThatHasItsOwn) {
  const Settings settings = resolve(klein_request(), tiny_klein());
  const auto levels_of = [&](const Json& options) {
    return make_sampler(settings, with_scheduler(tiny_klein(), options))->timesteps();
  };
  const auto levels = [&](samplers::SamplerRun run) {
    run.steps = settings.steps;
    return samplers::make_sampler(tiny_klein().scheduler, std::nullopt, run)->timesteps();
  };
  const double mu = models::flux2_mu(4, settings.steps);
  const auto own = levels({.steps = 0, .mu = mu}),
             even = levels({.steps = 0, .has_even_sigmas = true, .mu = mu});
  EXPECT_NE(own, even);
  EXPECT_EQ(levels_of({{"use_flow_sigmas", true}}), own);
  EXPECT_EQ(levels_of({{"use_flow_sigmas", false}}), even);
}

class Flux2KleinFolder : public GoldenFolderFixture {
 protected:
  void SetUp() override { copy_golden("tiny-flux2-klein"); }
};

TEST_F(Flux2KleinFolder, MayBeDistilled) {
  EXPECT_FALSE(read_model(folder_).is_distilled);
  change("model_index.json", {{"is_distilled", true}});
  EXPECT_TRUE(read_model(folder_).is_distilled);
  change("model_index.json", {{"is_distilled", nullptr}});
  EXPECT_FALSE(read_model(folder_).is_distilled);
  change("model_index.json", {{"is_distilled", "yes"}});
  EXPECT_NE(refusal_with_code([&] { read_model(folder_); }).find("'is_distilled' must be"),
            std::string::npos);
}

// As diffusers' pipeline does. Alone it is of the other family.
TEST_F(Flux2KleinFolder, GivesNoGuidanceScaleToATransformerThatTakesIt) {
  for (const Json& value : {Json(true), Json()}) {
    change("transformer/config.json", {{"guidance_embeds", value}});
    EXPECT_FALSE(read_model(folder_).shape.takes_guidance_scale);
    EXPECT_EQ(read_lone_denoiser(folder_ / "transformer").family->class_name, "Flux2Pipeline");
  }
  change("transformer/config.json", {{"guidance_embeds", false}});
  EXPECT_EQ(read_lone_denoiser(folder_ / "transformer").family->class_name, "Flux2KleinPipeline");
}

// Latents are turned into those of the result with numbers that are read at the end of a run.
TEST_F(Flux2KleinFolder, NoticesThatTheVaeHasChangedBeforeLatentsAreMade) {
  const Model model = read_model(folder_);
  Request request = klein_request();
  request.output_type = OutputType::kLatent;
  Observer observer;
  observer.finished = [&](Phase phase, double /*seconds*/) {
    if (phase == Phase::kDenoise) change("vae/config.json", {{"batch_norm_eps", 1}});
  };
  EXPECT_NE(refusal_with_code([&] {
              generate(resolve(request, model), model, observer);
            }).find("was changed or replaced while the model was in use"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::engine
