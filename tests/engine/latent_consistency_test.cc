// These tests compare a latent consistency model, which takes the guidance scale as an input, with diffusers.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "tests/support/generate.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_pixart.h"
#include "tests/support/tiny_stable_diffusion.h"

namespace tessera::engine {
namespace {

// The golden has a U-Net and a scheduler; the other parts are those of tiny-sd.
class LatentConsistency : public ::testing::Test {
 protected:
  LatentConsistency() {
    for (const char* part : {"text_encoder", "tokenizer", "vae"})
      std::filesystem::create_symlink(tiny_sd_folder() / part, temporary_.path() / part);
    for (const char* part : {"unet", "scheduler"})
      std::filesystem::create_symlink(golden_folder("tiny-lcm") / part, temporary_.path() / part);
    Json index = read_json(tiny_sd_folder() / "model_index.json");
    index["scheduler"] = {"diffusers", "LCMScheduler"};
    std::ofstream(temporary_.path() / "model_index.json") << index;
    model_ = read_model(temporary_.path());
  }

  Settings settings(const std::string& name, std::optional<double> guidance_scale = std::nullopt) {
    static const Json file = read_json(golden_folder("tiny-lcm") / "golden" / "runs.json");
    Json json = file.at("runs").at(name);
    json["seed"] = file.at("seed");
    json["dtype"] = "fp32";
    if (guidance_scale) json["guidance_scale"] = *guidance_scale;
    return resolve(read_fields(request_fields(), json), model_);
  }

  static void expect_golden(const Result& result, const std::string& name, const std::string& what) {
    static const auto golden = read_golden("tiny-lcm/golden/golden.safetensors");
    EXPECT_LE((result.latents - golden.at(name + ".latents")).abs().max().item<double>(), 1e-3) << what;
    EXPECT_LE(pixel_difference(pixels_of(result.images), golden.at(name + ".pixels")), 2) << what;
  }

  TemporaryFolder temporary_;
  Model model_;
};

TEST_F(LatentConsistency, EqualsDiffusers) {
  for (const char* name : {"default", "low"}) expect_golden(generate(settings(name), model_), name, name);
}

// The pipeline of diffusers' own class gives the same from the same numbers; its defaults are others.
TEST_F(LatentConsistency, HasAPipelineOfItsOwn) {
  Json index = read_json(temporary_.path() / "model_index.json");
  index["_class_name"] = "LatentConsistencyModelPipeline";
  std::ofstream(temporary_.path() / "model_index.json") << index;
  model_ = read_model(temporary_.path());
  expect_golden(generate(settings("low"), model_), "low", "LatentConsistencyModelPipeline");
  Request request;
  request.prompts = {"a cat"};
  EXPECT_EQ(resolve(request, model_).steps, 4);
  EXPECT_EQ(resolve(request, model_).guidance, 8.5);
}

TEST_F(LatentConsistency, HasNoNegativeBranchAndSaysSo) {
  const Settings chosen = settings("default");
  EXPECT_EQ(chosen.guidance, 7.5);
  EXPECT_FALSE(chosen.guided());
  EXPECT_FALSE(workload(chosen, model_).guided);
  ASSERT_EQ(chosen.warnings.size(), 1U);
  EXPECT_EQ(
      spell(chosen.warnings[0]),
      "negative_prompt, guidance_rescale have no effect: the model takes guidance_scale as an input and "
      "has no negative branch");
  EXPECT_TRUE(chosen.request.negative_prompts.empty());
  EXPECT_FALSE(chosen.request.guidance_rescale);
  EXPECT_TRUE(settings("low").warnings.empty());
}

TEST_F(LatentConsistency, RefusesCfgParallelismAsWithoutGuidance) {
  try {
    parallel::resolve_layout(parallel::degrees(1, true, 1, 1, 1, 1), workload(settings("default"), model_),
                             std::nullopt);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("needs a guidance scale above 1 and a negative branch"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(LatentConsistency, IsTheSameOnManyRanks) {
  using parallel::degrees;
  std::vector<parallel::ParallelOptions> methods = {degrees(1, false, 1, 1, 2, 1),
                                                    degrees(1, false, 1, 2, 1, 1),
                                                    degrees(1, false, 1, 1, 1, 2),
                                                    degrees(2, false, 1, 1, 1, 1),
                                                    {}};
  methods.back().displaced_patch_degree = 2;
  methods.back().displaced_mode = parallel::DisplacedMode::kFullSync;
  comm::run_ranks_as_threads(
      2,
      [&](const comm::World& world) {
        Engine engine(model_, kNoLimit, world);
        for (const parallel::ParallelOptions& options : methods) {
          const Settings chosen = settings("default");
          const auto layout = parallel::resolve_layout(options, workload(chosen, model_), std::nullopt);
          const Result result = engine.run(chosen, layout);
          if (world.rank() == 0) expect_golden(result, "default", parallel::degrees_text(options));
        }
      },
      comm::Wire::kShared);
}

// Each picture of a batch has its own scale, of which each replica of data parallelism has some.
TEST_F(LatentConsistency, TakesTheScaleOfEachPictureOnRanks) {
  std::vector<Settings> batch;
  for (const double scale : {0.0, 1.0, 6.5}) batch.push_back(settings("low", scale));
  std::vector<at::Tensor> alone;
  alone.reserve(batch.size());
  for (const Settings& each : batch) alone.push_back(generate(each, model_).latents);
  EXPECT_GT((alone[0] - alone[1]).abs().max().item<double>(), 0.1);
  EXPECT_GT((alone[1] - alone[2]).abs().max().item<double>(), 0.1);
  const auto layout = parallel::resolve_layout(parallel::degrees(2, false, 1, 1, 1, 1),
                                               workload(std::span(batch), model_), std::nullopt);
  comm::run_ranks_as_threads(
      2,
      [&](const comm::World& world) {
        Engine engine(model_, kNoLimit, world);
        const std::vector<Result> together = engine.run(batch, layout);
        if (world.rank() != 0) return;
        for (size_t i = 0; i < batch.size(); ++i)
          EXPECT_LE((together[i].latents - alone[i]).abs().max().item<double>(), 1e-3) << i;
      },
      comm::Wire::kShared);
}

}  // namespace
}  // namespace tessera::engine
