#include "engine/denoise.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tessera::engine {
namespace {

// Returns timestep * latents + the sample's conditioning.
struct FakeForward : models::Forward {
  FakeForward(const models::ForwardInputs& inputs, std::vector<int64_t>& batches_seen)
      : offsets(inputs.of_samples(models::kTokens).sum({1, 2}).view({-1, 1, 1, 1})), batches(batches_seen) {}

  void begin(const models::Timestep& at) override { timestep = at.value; }
  models::Hidden embed(const at::Tensor& latents) override {
    batches.push_back(latents.size(0));
    return {latents};
  }
  void block(int64_t, models::Hidden& hidden) override { hidden[0] = hidden[0] * timestep; }
  at::Tensor head(const models::Hidden& hidden) override { return hidden[0] + offsets; }
  std::vector<models::Stream> streams(int64_t) const override { return {}; }

  at::Tensor offsets;
  std::vector<int64_t>& batches;
  double timestep = 0;
};

struct FakeDenoiser : models::Denoiser {
  std::unique_ptr<models::Forward> start(const models::ForwardInputs& inputs) const override {
    return std::make_unique<FakeForward>(inputs, batches);
  }
  at::ScalarType dtype() const override { return at::kFloat; }
  int64_t conditioning_width() const override { return 1; }

  mutable std::vector<int64_t> batches;
};

// Steps z <- z - output + noise, and divides inputs by the number of the step. If it is noisy, all steps but
// the second need noise.
struct FakeSampler : samplers::Sampler {
  FakeSampler(std::vector<double> timesteps, bool noisy) : noisy_(noisy) {
    timesteps_ = std::move(timesteps);
  }
  at::Tensor scale_model_input(const at::Tensor& z, int64_t index) const override {
    return z / (index + 1.0);
  }
  bool needs_noise(int64_t index) const override { return noisy_ && index != 1; }
  at::Tensor step(const at::Tensor& output, int64_t index, const at::Tensor& z, samplers::SamplerState&,
                  const at::Tensor& noise) const override {
    EXPECT_EQ(noise.defined(), needs_noise(index));
    return noise.defined() ? z - output + noise : z - output;
  }
  at::Tensor predicted_sample(const at::Tensor& output, int64_t, const at::Tensor&) const override {
    return output;
  }

  bool noisy_;
};

std::vector<models::Conditioning> conditionings(const std::vector<double>& values) {
  std::vector<models::Conditioning> result;
  result.reserve(values.size());
  for (const double value : values)
    result.push_back({{models::kTokens, at::full({1, 1}, value, at::kFloat)}});
  return result;
}

// With guidance the first prompt is the negative one.
Guidance make_guidance(int64_t prompts, int64_t pictures_per_prompt, double scale) {
  Guidance guidance;
  for (int64_t i = 0; i < prompts; ++i) guidance.add(i + (scale > 1 ? 1 : 0), 0, scale, pictures_per_prompt);
  return guidance;
}

// A run of the fake denoiser on one rank.
struct FakeRun {
  FakeRun(const std::vector<double>& values, std::vector<double> timesteps, bool noisy, int64_t patches = 1)
      : prompts(conditionings(values)), sampler(std::move(timesteps), noisy) {
    ranks.layout.patches = patches;
  }

  at::Tensor operator()(const Guidance& guidance, const at::Tensor& z, Noise& noise,
                        const Observer& observer = {}) {
    DenoiserStage stage(denoiser, {}, prompts, guidance.samples(ranks), latent_shape, ranks);
    return denoise({stage, sampler, guidance, ranks}, z, noise, observer, seconds);
  }

  const std::vector<models::Conditioning> prompts;
  const models::LatentShape latent_shape{4, 4, 8};
  const FakeDenoiser denoiser;
  const FakeSampler sampler;
  parallel::Ranks ranks;
  std::vector<double> seconds;
};

// A rank's samples are the negative ones of its pictures, followed by the others.
TEST(Guidance, SaysWhichPromptsARankTakes) {
  Guidance guidance;
  guidance.add(1, 0, 4.5, 2);
  guidance.add(3, -1, 1);
  guidance.add(4, 2, 2);
  EXPECT_EQ(guidance.samples({}), (std::vector<int64_t>{0, 0, 3, 2, 1, 1, 3, 4}));
  parallel::Ranks ranks;
  ranks.data = {.rank = 1, .size = 2};
  EXPECT_EQ(guidance.samples(ranks), (std::vector<int64_t>{3, 2, 3, 4}));
  ranks.cfg = {.rank = 1, .size = 2};
  EXPECT_EQ(guidance.samples(ranks), (std::vector<int64_t>{3, 4}));
  ranks.cfg.rank = 0;
  EXPECT_EQ(guidance.samples(ranks), (std::vector<int64_t>{3, 2}));
  guidance = {};
  guidance.add(3, -1, 1, 2);
  EXPECT_EQ(guidance.samples({}), (std::vector<int64_t>{3, 3}));
}

// Each picture has its own scale, even if only some are guided.
TEST(Denoise, JoinsBranchesByThePicture) {
  FakeRun run({1, 2}, {0.5}, false);
  Guidance guidance;
  for (const double scale : {3.0, 3.0, 0.5, 5.0}) guidance.add(1, 0, scale);
  Noise noise({{0, 4}});
  const at::Tensor z = at::ones({4, 2, 4, 4});
  const at::Tensor result = run(guidance, z, noise);
  // The result is z - (0.5 z + 1 + scale (2 - 1)), and without guidance z - (0.5 z + 2).
  const std::vector<double> expected = {-3.5, -3.5, -1.5, -5.5};
  for (int64_t i = 0; i < 4; ++i)
    EXPECT_TRUE(result[i].eq(expected[static_cast<size_t>(i)]).all().item<bool>()) << result[i];
}

TEST(Guide, JoinsTheBranches) {
  const at::Tensor negative = at::full({2, 1, 1, 1}, 1.0), positive = at::full({2, 1, 1, 1}, 3.0);
  EXPECT_TRUE(FakeDenoiser().guide(negative, positive, 4.5).equal(at::full({2, 1, 1, 1}, 10.0)));
}

TEST(Denoise, FollowsTheFormulaStepByStep) {
  FakeRun run({1, 2, 4}, {0.5, 0.25}, false);
  const at::Tensor z = at::arange(2 * 2 * 4 * 4, at::kFloat).view({2, 2, 4, 4});
  Noise noise({{0, 1}});
  const at::Tensor result = run(make_guidance(2, 1, 3.0), z, noise);

  // Guidance of z t + 1 and z t + p is z t + 1 + 3 (p - 1).
  const at::Tensor offset = at::tensor({4.0F, 10.0F}).view({2, 1, 1, 1});
  at::Tensor expected = z - (z * 0.5 + offset);
  expected = expected - (expected / 2 * 0.25 + offset);
  EXPECT_TRUE(result.allclose(expected, 1e-6, 1e-5));
  EXPECT_EQ(run.denoiser.batches, (std::vector<int64_t>{4, 4}));
  EXPECT_EQ(run.seconds.size(), 2U);
}

TEST(Denoise, ComputesOneBranchWithoutGuidance) {
  FakeRun run({2}, {1.0}, false);
  Noise noise({{0, 1}});
  const at::Tensor z = at::ones({1, 2, 4, 4});
  const at::Tensor result = run(make_guidance(1, 1, 1.0), z, noise);
  EXPECT_TRUE(result.equal(at::full({1, 2, 4, 4}, -2.0F)));
  EXPECT_EQ(run.denoiser.batches, (std::vector<int64_t>{1}));
}

TEST(Denoise, NoiseOfTheStepsContinuesTheSequence) {
  FakeRun run({0}, {0.0, 0.0, 0.0}, true);
  Noise noise({{5, 1}});
  const at::Tensor z = noise.draw({1, 2, 4, 4});
  const at::Tensor result = run(make_guidance(1, 1, 1.0), z, noise);
  Noise again({{5, 1}});
  at::Tensor expected = again.draw({1, 2, 4, 4});
  for (int draw = 0; draw < 2; ++draw) expected = expected + again.draw({1, 2, 4, 4});
  EXPECT_TRUE(result.allclose(expected, 0, 1e-6));
}

// The fake denoiser and sampler are elementwise. Patches share the whole picture's noise, which is drawn once
// for each step that needs some.
TEST(Denoise, PatchesShareTheNoiseOfTheirStep) {
  const auto run = [](int64_t patches) {
    FakeRun fake({1, 2}, {0.5, 0.25, 0.125}, true, patches);
    Noise noise({{5, 1}});
    const at::Tensor z = noise.draw({1, 2, 4, 4});
    return fake(make_guidance(1, 1, 3.0), z, noise);
  };
  const at::Tensor whole = run(1);
  for (const int64_t patches : {2, 3, 4}) EXPECT_TRUE(run(patches).equal(whole)) << patches;
}

TEST(Denoise, ReportsStepsAndStopsBetweenThem) {
  FakeRun run({0}, {3.0, 2.0, 1.0}, false);
  Noise noise({{0, 1}});
  std::vector<int64_t> seen;
  Observer observer;
  observer.progressed = [&](Phase stage, int64_t done, int64_t total) {
    EXPECT_EQ(stage, Phase::kDenoise);
    EXPECT_EQ(total, 3);
    seen.push_back(done);
  };
  observer.cancelled = [&] { return seen.size() == 3; };
  EXPECT_THROW(run(make_guidance(1, 1, 1.0), at::ones({1, 2, 4, 4}), noise, observer), Cancelled);
  EXPECT_EQ(seen, (std::vector<int64_t>{0, 1, 2}));
}

}  // namespace
}  // namespace tessera::engine
