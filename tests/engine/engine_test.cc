// Tests that an engine gives each request the result that a new engine would.
#include "engine/engine.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <set>

#include "core/error.h"
#include "core/host.h"
#include "samplers/sampler.h"
#include "tests/support/generate.h"
#include "tests/support/tiny_pixart.h"

namespace tessera::engine {
namespace {

TEST(Engine, LoadsEachPartOnceWhereTheBudgetAllows) {
  std::vector<Phase> started;
  Observer observer;
  observer.started = [&](Phase phase) { started.push_back(phase); };
  Engine engine(tiny(), kNoLimit);
  EXPECT_EQ(engine.bytes_loaded(), 0U);
  const Result first = engine.run(tiny_settings(1), {}, observer);
  EXPECT_EQ(started.size(), 6U);
  started.clear();
  const Result second = engine.run(tiny_settings(2), {}, observer);
  EXPECT_EQ(started, (std::vector<Phase>{Phase::kEncode, Phase::kDenoise, Phase::kDecode}));
  EXPECT_EQ(second.weights_bytes, first.weights_bytes);
  EXPECT_EQ(second.weights_memory_bytes, first.weights_memory_bytes);
  EXPECT_TRUE(equal(first, generate(tiny_settings(1), tiny())));
  EXPECT_TRUE(equal(second, generate(tiny_settings(2), tiny())));
  EXPECT_FALSE(equal(first, second));
}

// The budget goes from room for all parts to room for none. Memory never exceeds it, the denoiser is evicted
// last, and pictures do not change.
TEST(Engine, KeepsWhatFitsIntoItsBudget) {
  const Result expected = generate(tiny_settings(1), tiny());
  uint64_t all = 0;
  {
    Engine engine(tiny(), kNoLimit);
    engine.run(tiny_settings(1));
    all = engine.bytes_loaded();
  }
  std::set<std::vector<Phase>> ways;
  for (uint64_t budget = all + all / 16; budget > all / 16; budget -= all / 16) {
    Engine engine(tiny(), budget);
    engine.run(tiny_settings(2));
    EXPECT_LE(engine.bytes_loaded(), budget);
    std::vector<Phase> loaded;
    Observer observer;
    observer.started = [&](Phase phase) {
      if (phase == Phase::kLoadTextEncoder || phase == Phase::kLoadDenoiser || phase == Phase::kLoadDecoder)
        loaded.push_back(phase);
    };
    EXPECT_TRUE(equal(engine.run(tiny_settings(1), {}, observer), expected)) << budget << " of " << all;
    EXPECT_LE(engine.bytes_loaded(), budget);
    ways.insert(loaded);
  }
  EXPECT_TRUE(ways.contains({}));
  EXPECT_TRUE(ways.contains({Phase::kLoadTextEncoder}));
  EXPECT_GE(ways.size(), 3U);
}

// Parts of another dtype count as other parts.
TEST(Engine, KeepsAPartForEachDtype) {
  Engine engine(tiny(), kNoLimit);
  engine.run(tiny_settings(1));
  const uint64_t in_fp32 = engine.bytes_loaded();
  Settings half = tiny_settings(1);
  half.request.dtype = at::kBFloat16;
  const Result expected = generate(half, tiny());
  EXPECT_TRUE(equal(engine.run(half), expected));
  EXPECT_GT(engine.bytes_loaded(), in_fp32);
  EXPECT_TRUE(equal(engine.run(tiny_settings(1)), generate(tiny_settings(1), tiny())));
}

std::vector<Settings> mixed_batch() {
  std::vector<Settings> batch;
  Request request = tiny_request(16, 32, 5, {"a cat", "a red circle above a blue square"});
  request.num_images_per_prompt = 2;
  batch.push_back(resolve(request, tiny()));
  request = tiny_request(16, 32, 6, {"a dog"});
  request.negative_prompts = {"blurry"};
  request.guidance_scale = 3.0;
  batch.push_back(resolve(request, tiny()));
  request.prompts = {"a house"};
  request.guidance_scale = 1.0;
  batch.push_back(resolve(request, tiny()));
  return batch;
}

// The requests of a batch have different settings. Each gives the same result as alone, with the same bits
// where engine.h says so. The sampler of the second round draws noise in each step.
TEST(Engine, RequestsOfOneBatchGiveTheSameAsAlone) {
  const bool in_bits = cpu_isa() >= Isa::kAvx2 && cpu_isa() < Isa::kAmx;
  for (const char* scheduler : {"DPMSolverMultistepScheduler", "EulerAncestralDiscreteScheduler"}) {
    Engine engine(tiny(), kNoLimit);
    std::vector<Settings> batch = mixed_batch();
    for (Settings& settings : batch) {
      settings.scheduler = scheduler;
      settings.request.scheduler = scheduler;
    }
    const std::vector<Result> together = engine.run(batch);
    ASSERT_EQ(together.size(), batch.size());
    for (size_t i = 0; i < batch.size(); ++i) {
      const Result alone = engine.run(batch[i]);
      ASSERT_EQ(together[i].latents.sizes(), alone.latents.sizes());
      ASSERT_EQ(together[i].images.size(), alone.images.size());
      EXPECT_LE(relative_error(together[i].latents, alone.latents), 1e-5) << scheduler << ", request " << i;
      if (in_bits) {
        EXPECT_TRUE(equal(together[i], alone)) << scheduler << ", request " << i;
      }
    }
  }
}

TEST(Engine, RefusesABatchOfSettingsThatDoNotGoTogether) {
  Engine engine(tiny());
  std::vector<Settings> batch = mixed_batch();
  batch[2] = resolve(tiny_request(32, 32, 5), tiny());
  try {
    engine.run(batch);
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("height"), std::string::npos) << error.what();
  }
  batch = mixed_batch();
  batch[1].request.eta = 0.5;
  EXPECT_THROW(engine.run(batch), Error);
}

// Each prompt keeps away from what it is told, in one batch as alone.
TEST(Engine, TakesANegativePromptForEachPrompt) {
  Engine engine(tiny(), kNoLimit);
  Request request = tiny_request(16, 32, 5, {"a cat", "a dog"});
  request.negative_prompts = {"blurry", "a red circle"};
  const at::Tensor both = engine.run(resolve(request, tiny())).latents;
  request.negative_prompts = {"blurry"};
  const at::Tensor first = engine.run(resolve(request, tiny())).latents;
  request.negative_prompts = {"a red circle"};
  const at::Tensor second = engine.run(resolve(request, tiny())).latents;
  EXPECT_LE(relative_error(both[0], first[0]), 1e-5);
  EXPECT_LE(relative_error(both[1], second[1]), 1e-5);
  EXPECT_GT(relative_error(first[1], second[1]), 1e-3);
}

TEST(Engine, TakesRescaleOfGuidedRequestsAlone) {
  Engine engine(tiny(), kNoLimit);
  std::vector<Settings> batch = mixed_batch();
  for (Settings& settings : batch) settings.guidance_rescale = settings.guided() ? 0.5 : 0;
  std::swap(batch[0], batch[2]);  // the one without guidance comes first
  EXPECT_EQ(engine.run(batch).size(), 3U);
  batch[2].guidance_rescale = 0.7;
  EXPECT_THROW(engine.run(batch), Error);
}

std::string failure_of(const Request& request) {
  try {
    generate(resolve(request, tiny()), tiny());
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// And the run names the step and what may help.
TEST(Engine, EndsWhereLatentsAreNotFinite) {
  Request request = tiny_request(16, 32, 1);
  request.guidance_scale = 1e300;
  EXPECT_EQ(
      failure_of(request),
      "[guidance_scale] the latents are not finite from step 1 of 4 on, with 1e+300; try a smaller one");
  request.guidance_scale = 1e36;  // the first step's are
  EXPECT_NE(failure_of(request).find("not finite from step 2 of 4 on"), std::string::npos)
      << failure_of(request);
  request.guidance_scale = 4.5;
  EXPECT_EQ(failure_of(request), "");
}

TEST(Engine, TakesEtaToTheSamplerThatHasIt) {
  Engine engine(tiny(), kNoLimit);
  const auto run = [&](const char* scheduler, double eta) {
    Settings settings = tiny_settings(1);
    settings.request.scheduler = scheduler;
    settings.request.eta = eta;
    return engine.run(settings);
  };
  EXPECT_FALSE(equal(run("ddim", 0), run("ddim", 0.5)));
  EXPECT_TRUE(equal(run("ddim", 0.5), run("ddim", 0.5)));
  EXPECT_TRUE(equal(run("dpm++", 0), run("dpm++", 0.5)));
}

TEST(Engine, TakesOptionsToTheSampler) {
  const auto run = [](const char* name, const std::vector<std::string>& options, const Json& file) {
    Model model = tiny();
    Json values = model.scheduler.values();
    values.update(file);
    model.scheduler = JsonConfig(values, "scheduler");
    Engine engine(model);
    Settings settings = tiny_settings(1);
    settings.request.scheduler = name;
    settings.request.scheduler_options = options;
    return engine.run(settings);
  };
  const Result expected = run("euler", {}, {{"use_karras_sigmas", true}, {"sigma_max", 7}});
  EXPECT_TRUE(equal(run("euler", {"use_karras_sigmas=true", "sigma_max=7"}, Json::object()), expected));
  EXPECT_FALSE(equal(run("euler", {"use_karras_sigmas=true"}, Json::object()), expected));
  EXPECT_TRUE(equal(run("euler-karras", {"sigma_max=7"}, Json::object()), expected));
}

// diffusers' pipeline of PixArt-alpha takes the predicted sample where there is one step.
TEST(Engine, EndsTheOnlyStepOfPixArtAlphaInTheSample) {
  Model model = tiny();
  model.family = &models::find_family("PixArtAlphaPipeline", "");
  // The last step ends at some noise, so that the predicted sample is something else.
  model.scheduler = JsonConfig(
      Json{{"_class_name", "EulerDiscreteScheduler"}, {"final_sigmas_type", "sigma_min"}}, "scheduler");
  for (const int64_t steps : {1, 4}) {
    Request request = tiny_request(16, 32, 1);
    request.num_inference_steps = steps;
    const auto sampler = make_sampler(resolve(request, model), model);
    const auto step = [&](const samplers::Sampler& each) {
      const at::Tensor x = at::ones({1, 4, 2, 4});
      samplers::SamplerState state;
      return each.step(0.5 * x, 0, x, state, {});
    };
    const auto expected = samplers::make_sampler(model.scheduler, std::nullopt, {steps, 2, 0, steps == 1});
    const auto other = samplers::make_sampler(model.scheduler, std::nullopt, {steps, 2, 0, steps != 1});
    EXPECT_TRUE(step(*sampler).equal(step(*expected))) << steps;
    EXPECT_FALSE(step(*sampler).equal(step(*other))) << steps;
  }
}

Settings settings_of(at::ScalarType dtype) {
  Settings settings = tiny_settings(1);
  settings.request.dtype = dtype;
  return settings;
}

// What an engine without a limit keeps of a dtype.
uint64_t bytes_of(at::ScalarType dtype) {
  Engine engine(tiny(), kNoLimit);
  engine.run(settings_of(dtype));
  return engine.bytes_loaded();
}

const std::vector<Phase> kWithoutLoading = {Phase::kEncode, Phase::kDenoise, Phase::kDecode};

std::vector<Phase> phases_of(Engine& engine, at::ScalarType dtype) {
  std::vector<Phase> started;
  Observer observer;
  observer.started = [&](Phase phase) { started.push_back(phase); };
  engine.run(settings_of(dtype), {}, observer);
  return started;
}

// The cache drops first what the request does not need, and keeps nothing beyond the budget.
TEST(Engine, DropsComponentsOfAnotherDtypeFirst) {
  const uint64_t budget = bytes_of(at::kFloat) + bytes_of(at::kBFloat16) / 2;  // no room for both
  Engine engine(tiny(), budget);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kFloat}) {
    engine.run(settings_of(dtype));
    EXPECT_LE(engine.bytes_loaded(), budget) << dtype;
    EXPECT_EQ(phases_of(engine, dtype), kWithoutLoading) << dtype;
  }
}

// Of two that no request needs, the one goes that was loaded first.
TEST(Engine, DropsTheOlderOfEquals) {
  Engine engine(tiny(), bytes_of(at::kFloat) + bytes_of(at::kBFloat16) + bytes_of(at::kHalf) - 1);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) engine.run(settings_of(dtype));
  EXPECT_EQ(phases_of(engine, at::kBFloat16), kWithoutLoading);
  EXPECT_NE(phases_of(engine, at::kFloat), kWithoutLoading);
}

// The shape that the last denoiser was started with.
models::LatentShape started_with;

class ShapeRecorder final : public models::Denoiser {
 public:
  explicit ShapeRecorder(std::unique_ptr<models::Denoiser> real) : real_(std::move(real)) {}
  std::unique_ptr<models::Forward> start(const models::ForwardInputs& inputs) const override {
    started_with = inputs.latent_shape;
    return real_->start(inputs);
  }
  at::ScalarType dtype() const override { return real_->dtype(); }
  int64_t conditioning_width() const override { return real_->conditioning_width(); }

 private:
  std::unique_ptr<models::Denoiser> real_;
};

TEST(Engine, GivesTheDenoiserSizesInPixels) {
  static const models::Family family = [] {
    models::Family recording = *tiny().family;
    recording.load_denoiser = [](const std::filesystem::path& folder, const models::LoadOptions& options,
                                 models::LoadStatistics& cost) -> std::unique_ptr<models::Denoiser> {
      return std::make_unique<ShapeRecorder>(tiny().family->load_denoiser(folder, options, cost));
    };
    return recording;
  }();
  Model model = tiny();
  model.family = &family;
  const Settings settings = resolve(tiny_request(48, 32, 3), model);
  generate(settings, model);
  EXPECT_EQ(started_with.latent_height, 6);
  EXPECT_EQ(started_with.latent_width, 4);
  EXPECT_EQ(started_with.scale_factor, 8);
  EXPECT_EQ(started_with.sizes, (models::SizeConditions{48, 32, 0, 0, 48, 32}));
}

// Flow matching shifts its steps by the number of tokens of a picture.
TEST(Engine, GivesTheSamplerTheNumberOfTokens) {
  Model model = tiny();
  model.scheduler = JsonConfig(
      Json{{"_class_name", "FlowMatchEulerDiscreteScheduler"}, {"use_dynamic_shifting", true}}, "scheduler");
  std::vector<double> timesteps;
  Observer observer;
  observer.preview_every = 1;
  observer.previewed = [&](const Preview& preview) { timesteps.push_back(preview.timestep); };
  Request request = tiny_request(96, 32, 3);
  request.output_type = OutputType::kLatent;
  generate(resolve(request, model), model, observer);
  const auto expected = samplers::make_sampler(model.scheduler, std::nullopt, {4, /*sample_tokens=*/12});
  EXPECT_EQ(timesteps, expected->timesteps());
}

}  // namespace
}  // namespace tessera::engine
