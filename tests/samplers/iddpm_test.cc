// Compares Improved DDPM with diffusers' DDPMScheduler, whose golden tools/golden/iddpm.py makes.
#include "samplers/iddpm.h"

#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include "core/error.h"
#include "tests/support/golden.h"

namespace tessera::samplers {
namespace {

const std::map<std::string, at::Tensor>& iddpm_golden() {
  static const auto tensors = read_golden((golden_folder("opensora") / "iddpm.safetensors").string());
  return tensors;
}

TEST(Iddpm, EqualsDiffusers) {
  const at::Tensor outputs = iddpm_golden().at("in.outputs"), noise = iddpm_golden().at("in.noise"),
                   timesteps = iddpm_golden().at("out.timesteps");
  const Iddpm sampler(outputs.size(0));
  ASSERT_EQ(sampler.steps(), outputs.size(0));
  at::Tensor z = iddpm_golden().at("in.z");
  SamplerState state;
  for (int64_t i = 0; i < sampler.steps(); ++i) {
    EXPECT_EQ(sampler.timesteps()[static_cast<size_t>(i)], timesteps[i].item<double>());
    EXPECT_LE(relative_error(sampler.add_noise(iddpm_golden().at("in.z"), noise[i], i),
                             iddpm_golden().at("out.noisy")[i]),
              1e-6);
    z = sampler.step(outputs[i], i, z, state, noise[i]);
    EXPECT_LE(relative_error(z, iddpm_golden().at("out.latents")[i]), 1e-5) << "step " << i;
  }
}

TEST(Iddpm, SpacesAHundredTimesteps) {
  const Iddpm sampler;
  ASSERT_EQ(sampler.steps(), 100);
  const auto timestep = [&](int64_t left) { return sampler.timesteps()[static_cast<size_t>(99 - left)]; };
  for (const auto& [left, expected] : {std::pair{99, 999}, {98, 989}, {97, 979}, {5, 50}, {1, 10}, {0, 0}})
    EXPECT_EQ(timestep(left), expected);
}

TEST(Iddpm, IsMadeFromItsFile) {
  const auto make = [](const char* key, int64_t value, int64_t steps) {
    const JsonConfig file({{"_class_name", "IDDPM"}, {"num_sampling_steps", 100}, {key, value}}, "file");
    return make_video_sampler(file, {.steps = steps, .height = 240, .width = 426, .num_frames = 16});
  };
  EXPECT_EQ(make("cfg_channel", 3, 10)->timesteps(), Iddpm(10).timesteps());
  EXPECT_EQ(make("diffusion_steps", 50, 50)->timesteps().front(), 49);
  EXPECT_THROW(make("cfg_channel", 4, 10), Error);
  EXPECT_THROW(make("diffusion_steps", 50, 51), Error);
}

// Half of ten steps: an edited frame stays for four steps, enters in the fifth and is denoised from the sixth
// on. A kept frame enters only in the last step.
TEST(Iddpm, CountsTheStepsThatAreLeft) {
  const Iddpm sampler(10);
  const at::Tensor mask = at::tensor({1.0F, 0.57F, 0.0F}).unsqueeze(0);
  const auto numbers = [](const at::Tensor& masks) {
    std::string text;
    for (int64_t i = 0; i < masks.size(1); ++i) text += masks[0][i].item<bool>() ? '1' : '0';
    return text;
  };
  const std::vector<std::array<std::string, 3>> expected = {
      {"000", "100", "100"}, {"000", "100", "100"}, {"000", "100", "100"}, {"000", "100", "100"},
      {"010", "110", "100"}, {"000", "110", "110"}, {"000", "110", "110"}, {"000", "110", "110"},
      {"000", "110", "110"}, {"001", "111", "110"}};
  for (int64_t step = 0; step < sampler.steps(); ++step) {
    const FrameMasks found = sampler.masks(mask, step);
    const std::array<std::string, 3> texts = {numbers(found.entering), numbers(found.changing),
                                              numbers(found.denoised)};
    EXPECT_EQ(texts, expected[static_cast<size_t>(step)]) << "step " << step;
  }
}

}  // namespace
}  // namespace tessera::samplers
