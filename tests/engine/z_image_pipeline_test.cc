// These tests compare Z-Image with diffusers, from the prompt to the pixels, on one rank and on many, and
// what its requests may say.
#include <gtest/gtest.h>

#include "core/error.h"
#include "ops/operation.h"
#include "tests/support/generate.h"
#include "tests/support/golden_folder_fixture.h"
#include "tests/support/rank_threads.h"
#include "tests/support/tiny_pipeline.h"
#include "tests/support/tiny_pixart.h"

namespace tessera::engine {
namespace {

TEST(ZImage, EqualsDiffusers) {
  z_image_pipeline().expect_golden({"guided", "turbo", "limited"});
}

// The request with limits of guidance: its norms are those of whole images, of which ranks have rows.
TEST(ZImage, IsTheSameOnManyRanks) {
  for (const int64_t ranks : {2, 3})
    z_image_pipeline().expect_golden_on_ranks(ranks, {"guided", "limited"}, exact_methods(ranks));
}

// Those of diffusers' pipeline, whose side does not depend on the VAE.
TEST(ZImage, HasThePipelinesDefaults) {
  Request request;
  request.prompts = {"a cat"};
  const Settings settings = resolve(request, tiny_z_image());
  EXPECT_EQ(settings.steps, 50);
  EXPECT_EQ(settings.guidance, 5);
  EXPECT_EQ(settings.height, 1024);
  EXPECT_EQ(settings.width, 1024);
  EXPECT_EQ(settings.max_sequence_length, 512);
  EXPECT_EQ(settings.cfg_normalization, 0);
  EXPECT_EQ(settings.cfg_truncation, 1);
  EXPECT_TRUE(settings.warnings.empty());
}

TEST(ZImage, IsGuidedAbove0) {
  Request request = small_request();
  request.guidance_scale = 0.25;
  request.negative_prompts = {"blurry"};
  request.cfg_normalization = 1;
  request.cfg_truncation = 0.5;
  Settings settings = resolve(request, tiny_z_image());
  EXPECT_TRUE(settings.guided() && workload(settings, tiny_z_image()).guided);
  EXPECT_EQ(settings.branch_scale(), 1.25);
  EXPECT_TRUE(settings.warnings.empty());
  request.guidance_scale = 0;
  settings = resolve(request, tiny_z_image());
  EXPECT_FALSE(settings.guided() || workload(settings, tiny_z_image()).guided);
  EXPECT_EQ(settings.branch_scale(), 1);
  ASSERT_EQ(settings.warnings.size(), 1U);
  EXPECT_EQ(
      spell(settings.warnings[0]),
      "negative_prompt, cfg_normalization, cfg_truncation have no effect: guidance_scale is 0, and there "
      "is guidance only above 0");
  EXPECT_EQ(settings.cfg_normalization, 0);
  const auto cfg = parallel::degrees(1, true, 1, 1, 1, 1);
  EXPECT_NE(refusal_with_code([&] {
              parallel::resolve_layout(cfg, workload(settings, tiny_z_image()), std::nullopt);
            }).find("use_cfg_parallel needs a guidance scale above 0 and a negative branch"),
            std::string::npos);
}

// Requests of a batch that are guided have the same limits.
TEST(ZImage, TakesLimitsOfGuidedRequestsAlone) {
  Engine engine(tiny_z_image(), kNoLimit);
  const auto settings = [](double guidance, double normalization, double truncation) {
    Request request = small_request();
    request.guidance_scale = guidance;
    if (guidance > 0) {
      request.cfg_normalization = normalization;
      request.cfg_truncation = truncation;
    }
    return resolve(request, tiny_z_image());
  };
  const std::vector<Settings> batch = {settings(0, 0, 1), settings(2, 0.5, 0.2), settings(3, 0.5, 0.2)};
  const std::vector<Result> together = engine.run(batch);
  for (size_t i = 0; i < batch.size(); ++i)
    EXPECT_LE(relative_error(together[i].latents, engine.run(batch[i]).latents), 1e-5) << i;
  for (const auto& [other, name] :
       {std::pair(settings(2, 0.6, 0.2), "cfg_normalization"), {settings(2, 0.5, 0.3), "cfg_truncation"}}) {
    EXPECT_EQ(refusal_with_code([&, &other = other] { engine.run(std::vector{batch[1], other}); }),
              fmt::format("2 [{}] differs between the requests of one batch", name));
  }
}

// Whether ranks divide an image or not; those of CFG have a branch each.
TEST(ZImage, EvaluatesOneBranchWhereGuidanceIsOver) {
  const auto flops_of = [](double truncation) {
    Request request = small_request();
    request.cfg_truncation = truncation;
    int64_t flops = 0;
    bool denoises = false;
    Observer observer;
    observer.started = [&](Phase phase) { denoises = phase == Phase::kDenoise; };
    const ops::ObserveOperations observed([&](const ops::Operation& operation) {
      if (denoises && operation.block >= 0 && operation.name.starts_with("attention"))
        flops += operation.flops;
    });
    generate(resolve(request, tiny_z_image()), tiny_z_image(), observer);
    return flops;
  };
  // Of two steps the second has one branch. Both texts are filled up to 32 tokens.
  EXPECT_EQ(4 * flops_of(0), 3 * flops_of(1));
}

TEST(ZImage, LimitsNoNormsOfPatches) {
  Request request = small_request();
  request.cfg_normalization = 1;
  const parallel::ParallelOptions pipeline = parallel::degrees(1, false, 2, 1, 1, 1);
  const auto lay_out = [&] {
    const Settings settings = resolve(request, tiny_z_image());
    parallel::resolve_layout(pipeline, workload(settings, tiny_z_image()), std::nullopt);
  };
  EXPECT_NE(refusal_with_code(lay_out).find(
                "pipefusion_parallel_degree 2 combines the branches of guidance patch by "
                "patch, but cfg_normalization limits the norm of a whole image"),
            std::string::npos);
  request.guidance_scale = 0;
  EXPECT_EQ(refusal_with_code(lay_out), "accepted");
  request.guidance_scale = 2;
  request.cfg_normalization = 0;
  EXPECT_EQ(refusal_with_code(lay_out), "accepted");
}

// diffusers' pipeline hands noise levels to its scheduler.
TEST(ZImage, RefusesSamplersThatTakeNoNoiseLevels) {
  Request request = small_request();
  request.scheduler = "unipc";
  EXPECT_EQ(
      refusal_with_code([&] { generate(resolve(request, tiny_z_image()), tiny_z_image()); }),
      "2 [scheduler] the model hands its noise levels to its sampler; UniPCMultistepScheduler cannot take "
      "them, got 'unipc'; flow-euler can");
  const Model model = with_scheduler(tiny_z_image(), {{"_class_name", "EulerDiscreteScheduler"}});
  request.scheduler.reset();
  EXPECT_EQ(
      refusal_with_code([&] { make_sampler(resolve(request, model), model); }),
      "3 [scheduler.json] the model hands its noise levels to its sampler; EulerDiscreteScheduler cannot "
      "take them; give scheduler flow-euler");
  request.scheduler = "flow-euler";
  EXPECT_EQ(refusal_with_code([&] { make_sampler(resolve(request, model), model); }), "accepted");
}

class ZImagePositions : public GoldenFolderFixture {
 protected:
  void SetUp() override {
    copy_golden("tiny-z-image");
    change("transformer/config.json", {{"axes_lens", {97, 5, 6}}});
  }
};

TEST_F(ZImagePositions, LimitSides) {
  const Model model = read_model(folder_);
  Request request = small_request();
  request.height.reset();
  request.width.reset();
  EXPECT_EQ(resolve(request, model).height, 40);
  EXPECT_EQ(resolve(request, model).width, 48);
  EXPECT_EQ(refusal_with_code([&] { generate(resolve(request, model), model); }), "accepted");
  request.height = 48;
  request.width = 56;
  EXPECT_EQ(
      refusal_with_code([&] { resolve(request, model); }),
      "2 [height] must be at most 40, for which the model has positions, got 48; [width] must be at most "
      "48, for which the model has positions, got 56");
  request.height = 44;
  EXPECT_EQ(refusal_with_code([&] { resolve(request, model); }),
            "2 [height] 44 is not a multiple of 8; the nearest valid sizes are 40 and 48; [width] must be at "
            "most 48, for which the model has positions, got 56");
}

// The text is filled up to a multiple of 32, of which the position of the picture is one behind.
TEST_F(ZImagePositions, LimitTextsOnAllRanks) {
  const Model model = read_model(folder_);
  Request request = small_request();
  request.height = 40;
  const std::string words =
      "a cat and a dog and a house and a star and a cat and a dog and a house and a star";
  const std::string refusal =
      "2 [prompt] has {} tokens with its template, or the negative prompt has, but the model has positions "
      "for 64 "
      "('axes_lens' of its transformer); shorten it, or give max_sequence_length 64";
  for (const bool is_negative : {false, true}) {
    (is_negative ? request.negative_prompts : request.prompts) = {words + words};
    if (is_negative) request.prompts = {"a cat"};
    request.max_sequence_length = 65;
    EXPECT_EQ(refusal_with_code([&] { generate(resolve(request, model), model); }),
              fmt::format(fmt::runtime(refusal), 65));
    request.max_sequence_length = 64;
    EXPECT_EQ(refusal_with_code([&] { generate(resolve(request, model), model); }), "accepted");
  }
  request.max_sequence_length = 100;
  comm::run_ranks_as_threads(
      2,
      [&](const comm::World& world) {
        Engine engine(model, kNoLimit, world);
        const Settings settings = resolve(request, model);
        const auto layout = parallel::resolve_layout(parallel::degrees(1, false, 1, 1, 2, 1),
                                                     workload(settings, model), std::nullopt);
        EXPECT_NE(refusal_with_code([&] { engine.run(settings, layout); }).find("has positions for 64"),
                  std::string::npos);
      },
      comm::Wire::kShared);
}

}  // namespace
}  // namespace tessera::engine
