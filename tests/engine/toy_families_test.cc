// Runs whole families of toys through the engine: text encoders, conditions, denoiser and decoder, on one
// rank and on ranks that are threads.
#include <gtest/gtest.h>

#include <fstream>

#include "engine/engine.h"
#include "tests/models/toys/all.h"
#include "tests/support/degrees.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace tessera::engine {
namespace {

using models::toys::Toy;

class ToyFamilies : public ::testing::Test {
 protected:
  ToyFamilies() { std::ofstream(folder_.path() / "model_index.json") << R"({"_class_name": "Toys"})"; }

  Model model(const models::Family& family) const {
    Model model;
    model.folder = folder_.path();
    model.family = &family;
    model.parts = family.parts;
    model.shape = family.read_shape(model.folder);
    model.scale = family.read_latent_scale(model.folder, model.shape.latent_channels);
    model.scheduler = JsonConfig(Json{{"_class_name", "FlowMatchEulerDiscreteScheduler"}}, "scheduler");
    return model;
  }

 private:
  TemporaryFolder folder_;
};

Settings request_of(const Toy& toy, const Model& model, uint64_t seed,
                    const std::vector<std::string>& prompts, const std::vector<std::string>& others,
                    double guidance) {
  Request request;
  request.prompts = prompts;
  request.other_prompts[0] = others;
  request.height = toy.rows * model.scale.pixels;
  request.width = toy.columns * model.scale.pixels;
  request.seed = seed;
  request.guidance_scale = guidance;
  request.dtype = at::kFloat;
  return resolve(request, model);
}

double difference(const Result& a, const Result& b) {
  return (a.latents - b.latents).abs().max().item<double>();
}

// Prompts of different lengths and guidance scales share a batch, whatever the layout.
TEST_F(ToyFamilies, GiveOnRanksWhatTheyGiveOnOne) {
  using parallel::degrees;
  const std::vector<parallel::ParallelOptions> ways = {
      degrees(2, false, 1, 1, 1, 1), degrees(1, false, 1, 1, 2, 1), degrees(1, false, 1, 2, 1, 1),
      degrees(1, false, 1, 1, 1, 2), degrees(1, false, 3, 1, 1, 1), degrees(1, false, 2, 2, 1, 1)};
  for (const Toy& toy : models::toys::all_toys()) {
    if (!toy.family) continue;
    const models::Family family = toy.family();
    const Model model = this->model(family);
    const std::vector<Settings> requests = {
        request_of(toy, model, 1, {"a cat", "boat"}, {"x", "a longer text"}, 3.5),
        request_of(toy, model, 2, {"a red circle"}, {}, 1.25)};
    const std::vector<Result> alone = Engine(model).run(requests);
    ASSERT_EQ(alone.front().images.size(), 2U);
    for (parallel::ParallelOptions options : ways) {
      if (options.pipefusion_parallel_degree > 1) options.num_pipeline_patch = 1;
      const parallel::Layout layout =
          parallel::resolve_layout(options, workload(requests, model), std::nullopt);
      std::vector<Result> results;
      comm::run_ranks_as_threads(
          options.degrees(),
          [&](comm::World world) {
            const bool is_first = world.rank() == 0;
            std::vector<Result> own = Engine(model, 0, std::move(world)).run(requests, layout);
            if (is_first) results = std::move(own);
          },
          comm::Wire::kShared);
      for (size_t i = 0; i < requests.size(); ++i)
        EXPECT_LE(difference(results[i], alone[i]), 1e-4) << toy.name << parallel::degrees_text(options);
    }
  }
}

// Each text encoder takes its own text, or the first one's.
TEST_F(ToyFamilies, EncodersTakeTheirOwnTexts) {
  for (const Toy& toy : models::toys::all_toys()) {
    if (!toy.family) continue;
    const models::Family family = toy.family();
    const Model model = this->model(family);
    Engine engine(model);
    const auto run = [&](const std::string& first, const std::vector<std::string>& second, double guidance) {
      return engine.run(request_of(toy, model, 1, {first}, second, guidance));
    };
    const Result plain = run("a cat", {}, 3.5);
    EXPECT_EQ(difference(plain, run("a cat", {"a cat"}, 3.5)), 0);
    EXPECT_GE(difference(plain, run("a cat", {"boat"}, 3.5)), 1e-2);
    EXPECT_GE(difference(run("a cat", {"boat"}, 3.5), run("boat", {"boat"}, 3.5)), 1e-2);
    EXPECT_GE(difference(plain, run("a cat", {}, 2)), 1e-2);
  }
}

}  // namespace
}  // namespace tessera::engine
