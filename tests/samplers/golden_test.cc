// Compares every sampler and option with diffusers, over the cases of tools/golden/samplers.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/json.h"
#include "samplers/sampler.h"
#include "tests/support/golden.h"
#include "tests/support/smooth_model.h"

namespace tessera::samplers {
namespace {

const JsonConfig& golden() {
  static const JsonConfig file = JsonConfig::read(golden_folder("samplers/cases.json"));
  return file;
}

const Json& golden_case(int index) {
  return golden().values().at("cases").at(static_cast<size_t>(index));
}

at::Tensor to_tensor(const Json& numbers) {
  return at::tensor(numbers.get<std::vector<double>>(), at::kFloat).view(golden().integers("shape"));
}

class GoldenTest : public testing::TestWithParam<int> {};

// KDPM2's ancestral form takes the timestep of sqrt(sigma sigma_down), sigma_down^2 = next^2 - noise^2, in
// float32. The difference amplifies rounding errors, of which MKL's logarithms have others on other
// processors, by (sigma / next)^2, here up to 2,000: diffusers itself has the timestep 0 on one and 5.8e-5 on
// another.
double timestep_tolerance(const Json& expected) {
  return expected.at("scheduler") == "KDPM2AncestralDiscreteScheduler" ? 1e-3 : 0;
}

TEST_P(GoldenTest, EqualsDiffusers) {
  const Json& expected = golden_case(GetParam());
  const JsonConfig config(expected.at("config"), "scheduler_config.json");
  const auto make = [&] {
    return make_sampler(config, expected.at("scheduler").get<std::string>(),
                        {.steps = expected.at("steps").get<int64_t>(),
                         .sample_tokens = expected.at("tokens").get<int64_t>(),
                         .eta = expected.at("eta").get<double>()});
  };
  if (expected.at("latents").is_null()) {
    EXPECT_THROW(make(), Error);
    return;
  }
  const std::unique_ptr<Sampler> sampler = make();
  ASSERT_EQ(sampler->timesteps().size(), expected.at("timesteps").size());
  EXPECT_NEAR(sampler->init_noise_sigma() / expected.at("init_noise_sigma").get<double>(), 1, 1e-6);

  at::Tensor z = to_tensor(golden().values().at("initial")) * sampler->init_noise_sigma();
  SamplerState state;
  size_t draws = 0;  // not every step draws noise
  for (int64_t i = 0; i < sampler->steps(); ++i) {
    const auto at = static_cast<size_t>(i);
    const double timestep = sampler->timesteps()[at];
    const double expected_timestep = expected.at("timesteps").at(at).get<double>();
    double tolerance = timestep_tolerance(expected);
    if (expected_timestep != std::round(expected_timestep))  // a fraction, in float32
      tolerance = std::max(tolerance, 1e-6 * std::max(1.0, std::abs(expected_timestep)));
    EXPECT_NEAR(timestep, expected_timestep, tolerance) << "step " << i;
    const at::Tensor noise =
        sampler->needs_noise(i) ? to_tensor(golden().values().at("noises").at(draws++)) : at::Tensor();
    z = sampler->step(smooth_model(sampler->scale_model_input(z, i), timestep), i, z, state, noise);
    const at::Tensor reference = to_tensor(expected.at("latents").at(at));
    const double error = (z - reference).abs().max().item<double>() / reference.abs().max().item<double>();
    EXPECT_LE(error, 1e-5) << "step " << i;
  }
}

std::string case_name(const testing::TestParamInfo<int>& info) {
  const Json& row = golden_case(info.param);
  std::string name = row.at("scheduler").get<std::string>() + "_" + row.at("name").get<std::string>() + "_" +
                     std::to_string(row.at("steps").get<int64_t>());
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Diffusers, GoldenTest,
                         testing::Range(0, static_cast<int>(golden().values().at("cases").size())),
                         case_name);

// Models may scale timesteps by thousands. The numbers are those of FlowMatchEulerDiscreteScheduler in
// diffusers 0.42.1, given np.linspace(1.0, 1 / 7, 7), and with the second options mu = 0.93.
TEST(FlowMatching, EvenLevelsAreThoseOfDiffusersInEveryBit) {
  const auto timesteps = [](const char* options, std::optional<double> mu) {
    return make_sampler({parse_json(options, "file.json"), "file.json"}, "flow-euler",
                        {.steps = 7, .has_even_sigmas = true, .mu = mu})
        ->timesteps();
  };
  EXPECT_EQ(timesteps(R"({"shift": 3.0, "shift_terminal": 0.1})", std::nullopt),
            (std::vector<double>{0x1.f4p+9, 0x1.d07942p+9, 0x1.a49694p+9, 0x1.6d0002p+9, 0x1.244ec4p+9,
                                 0x1.825d1ep+8, 0x1.900006p+6}));
  EXPECT_EQ(timesteps(R"({"use_dynamic_shifting": true})", 0.93),
            (std::vector<double>{0x1.f4p+9, 0x1.d52636p+9, 0x1.afd872p+9, 0x1.81d3e4p+9, 0x1.47a37cp+9,
                                 0x1.f76d66p+8, 0x1.28f8cep+8}));
}

}  // namespace
}  // namespace tessera::samplers
