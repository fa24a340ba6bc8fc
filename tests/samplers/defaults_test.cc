// Options that a file lacks have the values of tests/golden/defaults.json, which are those of the
// constructors in diffusers.
#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include "core/error.h"
#include "samplers/options.h"
#include "samplers/sampler.h"
#include "samplers/video_sampler.h"
#include "tests/support/golden.h"
#include "tests/support/smooth_model.h"

namespace tessera::samplers {
namespace {

const Json& all_defaults() {
  static const Json all = read_json(golden_folder("defaults.json"));
  return all;
}

std::vector<std::string> scheduler_classes() {
  std::vector<std::string> names;
  for (const auto& [name, options] : all_defaults().items())
    if (!options_of(name).empty()) names.push_back(name);
  return names;
}

// The latents after each step of a run, [steps, 2, 2, 2].
at::Tensor latents(const std::string& class_name, const Json& options) {
  const auto sampler = make_sampler({options, "scheduler_config.json"}, class_name,
                                    {.steps = 5, .sample_tokens = 700, .eta = 0.5});
  const at::Tensor initial = at::linspace(-2, 2, 8).view({1, 2, 2, 2});
  at::Tensor z = initial * sampler->init_noise_sigma();
  SamplerState state;
  std::vector<at::Tensor> all;
  for (int64_t i = 0; i < sampler->steps(); ++i) {
    const double timestep = sampler->timesteps()[static_cast<size_t>(i)];
    const at::Tensor noise = sampler->needs_noise(i) ? at::cos(3 * initial + i) : at::Tensor();
    z = sampler->step(smooth_model(sampler->scale_model_input(z, i), timestep), i, z, state, noise);
    all.push_back(z);
  }
  return at::concat(at::TensorList(all));
}

// The options of a class with one of them changed, so that what depends on it has an effect: flags, and
// choices of words.
std::vector<Json> variants(const std::string& class_name) {
  const Json& defaults = all_defaults().at(class_name);
  std::vector<Json> changes = {Json::object(),
                               {{"prediction_type", "v_prediction"}},
                               {{"prediction_type", "sample"}},
                               {{"timestep_spacing", "leading"}},
                               {{"timestep_spacing", "trailing"}},
                               {{"beta_schedule", "squaredcos_cap_v2"}},
                               {{"final_sigmas_type", "sigma_min"}},
                               {{"sigma_schedule", "exponential"}},
                               {{"solver_order", 3}},
                               {{"thresholding", true}, {"sample_max_value", 100}},
                               {{"use_flow_sigmas", true}, {"prediction_type", "flow_prediction"}}};
  for (const OptionInfo& option : all_options())
    if (option.type == OptionType::kFlag && defaults.contains(option.name))
      changes.push_back({{option.name, !defaults.at(option.name).get<bool>()}});
  std::vector<Json> all;
  for (const Json& change : changes) {
    Json options = defaults;
    bool known = true;
    for (const auto& [key, value] : change.items()) known = known && options.contains(key);
    options.update(change);
    if (known) all.push_back(std::move(options));
  }
  return all;
}

class SchedulerDefaults : public testing::TestWithParam<std::string> {};

TEST_P(SchedulerDefaults, AreThoseOfDiffusers) {
  const Json& defaults = all_defaults().at(GetParam());
  EXPECT_NO_THROW(latents(GetParam(), defaults));
  for (const Json& options : variants(GetParam())) {
    at::Tensor expected;
    try {
      expected = latents(GetParam(), options);
    } catch (const Error&) {
      continue;  // not every class runs with every choice
    }
    for (const auto& [key, value] : defaults.items()) {
      if (options.at(key) != value) continue;
      Json without = options;
      without.erase(key);
      EXPECT_TRUE(at::equal(latents(GetParam(), without), expected)) << key << " of " << options;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Classes, SchedulerDefaults, testing::ValuesIn(scheduler_classes()),
                         [](const auto& info) { return info.param; });

// Those of RFLOW and IDDPM of Open-Sora.
TEST(VideoSchedulerDefaults, AreThoseOfOpenSora) {
  const auto timesteps = [](const Json& options) {
    return make_video_sampler({options, "scheduler_config.json"},
                              {.steps = 7, .height = 480, .width = 320, .num_frames = 51})
        ->timesteps();
  };
  for (const Json& options :
       {Json{{"_class_name", "RFLOW"},
             {"num_timesteps", 1000},
             {"use_discrete_timesteps", false},
             {"use_timestep_transform", false}},
        Json{{"_class_name", "IDDPM"}, {"diffusion_steps", 1000}, {"cfg_channel", 3}}}) {
    for (const auto& [key, value] : options.items()) {
      if (key == "_class_name") continue;
      Json without = options;
      without.erase(key);
      EXPECT_EQ(timesteps(without), timesteps(options)) << key;
    }
  }
}

}  // namespace
}  // namespace tessera::samplers
