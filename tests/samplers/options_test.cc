// What options of files mean: for the file's own class, for another class, and for no class at all.
#include "samplers/options.h"

#include <gtest/gtest.h>

#include "core/log.h"
#include "samplers/sampler.h"

namespace tessera::samplers {
namespace {

JsonConfig parse(const std::string& text) {
  return {parse_json(text, "file.json"), "file.json"};
}

TEST(StableDiffusionOptions, AreSetWhateverTheFileSays) {
  const JsonConfig old = parse(R"({"_class_name": "DDIMScheduler", "steps_offset": 0, "clip_sample": true})");
  for (const JsonConfig& file : {old, parse(R"({"_class_name": "DDIMScheduler"})")}) {
    const JsonConfig config = with_stable_diffusion_options(file);
    EXPECT_EQ(config.integer("steps_offset"), 1);
    EXPECT_FALSE(config.boolean("clip_sample"));
    EXPECT_EQ(config.where(), "file.json");
    EXPECT_EQ(make_sampler(config, {}, {4})->timesteps(), (std::vector<double>{751, 501, 251, 1}));
  }
}

// The latents after one step from latents of 2 in which the model sees this noise.
float after_one_step(const JsonConfig& config, const std::optional<std::string>& name, bool ends_in_sample,
                     double noise = 0) {
  const auto sampler = make_sampler(config, name, {.steps = 1, .ends_in_sample = ends_in_sample});
  SamplerState state;
  return sampler->step(at::full({1}, noise), 0, at::full({1}, 2), state, at::zeros({1})).item<float>();
}

// What Stable Diffusion's pipeline adds to a file is not what diffusers makes another class of.
TEST(StableDiffusionOptions, AreLeftOutForAnotherClassWhereTheFileHasNoWordForThem) {
  using Timesteps = std::vector<double>;
  const auto pndm = [](const std::string& more) {
    return with_stable_diffusion_options(
        parse(R"({"_class_name": "PNDMScheduler", "skip_prk_steps": true)" + more + "}"));
  };
  const Timesteps from_zero = {750, 500, 250, 0}, from_one = {751, 501, 251, 1};
  for (const char* name : {"DDIMScheduler", "ddim"}) {
    EXPECT_EQ(make_sampler(pndm(""), name, {4})->timesteps(), from_zero) << name;
    EXPECT_EQ(make_sampler(pndm(R"(, "steps_offset": 0)"), name, {4})->timesteps(), from_one) << name;
  }
  EXPECT_EQ(after_one_step(pndm(""), "DDIMScheduler", false), 1);  // clipped
  EXPECT_GT(after_one_step(pndm(R"(, "clip_sample": true)"), "DDIMScheduler", false), 1.99);
  EXPECT_GT(after_one_step(pndm(""), "ddim", false), 1.99);

  const JsonConfig own = with_stable_diffusion_options(parse(R"({"_class_name": "DDIMScheduler"})"));
  EXPECT_EQ(make_sampler(own, "DDIMScheduler", {4})->timesteps(), from_zero);
  EXPECT_EQ(make_sampler(own, "ddim", {4})->timesteps(), from_one);  // the short name is the model's own here
}

TEST(SamplerOptions, NullIsFalse) {
  const auto final = [](const Json& to_one) {
    const Json options = {
        {"_class_name", "DDIMScheduler"}, {"clip_sample", nullptr}, {"set_alpha_to_one", to_one}};
    return after_one_step(JsonConfig(options, "file.json"), {}, false);
  };
  EXPECT_EQ(final(nullptr), final(false));
  EXPECT_NE(final(nullptr), final(true));
  EXPECT_GT(final(nullptr), 1.99);
}

TEST(SamplerOptions, AStepEndsInTheSampleWhereThatIsAskedFor) {
  for (const char* file :
       {R"({"_class_name": "DDIMScheduler", "clip_sample": false, "set_alpha_to_one": false})",
        R"({"_class_name": "EulerDiscreteScheduler", "final_sigmas_type": "sigma_min"})",
        R"({"_class_name": "EulerDiscreteScheduler", "interpolation_type": "log_linear"})"}) {
    const JsonConfig config = parse(file);
    Json ends = config.values();
    ends["set_alpha_to_one"] = true;
    ends["final_sigmas_type"] = "zero";
    ends["interpolation_type"] = "linear";
    const JsonConfig to_zero(std::move(ends), "file.json");
    // Interpolations begin at different noise.
    const double noise = config.has("interpolation_type") ? 0 : 0.5;
    EXPECT_EQ(after_one_step(config, {}, true, noise), after_one_step(to_zero, {}, true, noise)) << file;
    EXPECT_EQ(after_one_step(to_zero, {}, true, noise), after_one_step(to_zero, {}, false, noise)) << file;
  }
}

TEST(SamplerOptions, WarnsInOneLineOfOptionsThatNoSchedulerHas) {
  std::vector<std::string> warnings;
  const LogSink before = set_log_sink([&](LogLevel, const std::string& text) { warnings.push_back(text); });
  make_sampler(parse(R"({"new": 3, "newer": "x", "off": false, "none": null, "_own": 1, "rho": 7})"), "ddim",
               {4});
  set_log_sink(before);
  EXPECT_EQ(warnings, std::vector<std::string>{"[file.json] options without effect: new, newer"});
}

}  // namespace
}  // namespace tessera::samplers
