// Tests properties of every sampler: exact solutions, steps on slices, and errors.
#include "samplers/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/log.h"

namespace tessera::samplers {
namespace {

JsonConfig parse(const std::string& text) {
  return {parse_json(text, "file.json"), "file.json"};
}

struct Case {
  std::string label;
  std::string name;  // as for scheduler
  std::string options;
  double eta = 0;
};

void PrintTo(const Case& value, std::ostream* out) {
  *out << value.label;
}

std::string label_of(const testing::TestParamInfo<Case>& info) {
  return info.param.label;
}

// Returns every sampler of the table with default options, and options that change how a step is computed.
std::vector<Case> all_cases() {
  std::vector<Case> cases = {
      {"ddim_not_clipped", "ddim", R"({"clip_sample": false})"},
      {"ddim_eta", "ddim", R"({"clip_sample": false})", 0.6},
      {"ddim_eta_clipped", "ddim", R"({"prediction_type": "v_prediction"})", 1},
      {"pndm_v", "pndm", R"({"skip_prk_steps": true, "prediction_type": "v_prediction"})"},
      {"euler_sample", "euler", R"({"prediction_type": "sample", "use_karras_sigmas": true})"},
      {"dpm_3_sample", "dpm++", R"({"solver_order": 3, "prediction_type": "sample"})"},
      {"dpm_heun_karras", "dpm++", R"({"solver_type": "heun", "use_karras_sigmas": true})"},
      {"dpm_flow", "dpm++", R"({"use_flow_sigmas": true, "prediction_type": "flow_prediction"})"},
      {"dpm_sde_3_v", "dpm++-sde", R"({"solver_order": 3, "prediction_type": "v_prediction"})"},
      {"unipc_4", "unipc", R"({"solver_order": 4, "disable_corrector": [0, 3]})"},
      {"unipc_flow", "unipc", R"({"use_flow_sigmas": true, "prediction_type": "flow_prediction"})"},
      {"flow_euler_stochastic", "flow-euler", R"({"stochastic_sampling": true})"},
      {"singlestep_3_heun", "dpm++-singlestep", R"({"solver_order": 3, "solver_type": "heun"})"},
      {"singlestep_sde", "DPMSolverSinglestepScheduler", R"({"algorithm_type": "sde-dpmsolver++"})"},
      {"deis_3_v", "deis", R"({"solver_order": 3, "prediction_type": "v_prediction"})"},
      {"sa_3_4_v", "sa-solver",
       R"({"predictor_order": 3, "corrector_order": 4, "prediction_type": "v_prediction"})"},
      {"edm_dpm_sde", "EDMDPMSolverMultistepScheduler", R"({"algorithm_type": "sde-dpmsolver++"})"},
      {"lcm_clipped_v", "lcm", R"({"clip_sample": true, "prediction_type": "v_prediction"})"},
      {"tcd_eta", "tcd", "{}", 0.3},
      {"ddim_threshold", "ddim", R"({"thresholding": true})"},
      {"dpm_noise_threshold", "DPMSolverMultistepScheduler",
       R"({"algorithm_type": "dpmsolver", "final_sigmas_type": "sigma_min", "thresholding": true,
           "sample_max_value": 0.5})"},
      {"ddpm_clipped", "DDPMScheduler", R"({"variance_type": "fixed_large"})"},
      {"heun_clipped_sample", "heun", R"({"clip_sample": true, "prediction_type": "sample"})"},
      {"lms_v_karras", "lms", R"({"use_karras_sigmas": true, "prediction_type": "v_prediction"})"},
      {"kdpm2_a_v_beta", "kdpm2-a", R"({"use_beta_sigmas": true, "prediction_type": "v_prediction"})"},
  };
  for (const SamplerName& known : known_samplers()) {
    std::string label = "table_" + known.short_name;
    std::replace_if(label.begin(), label.end(), [](char c) { return c == '-' || c == '+'; }, '_');
    cases.push_back({label, known.short_name, "{}"});
  }
  return cases;
}

class SamplerTest : public testing::TestWithParam<Case> {
 protected:
  static std::unique_ptr<Sampler> make(int64_t steps) {
    return make_sampler(parse(GetParam().options), GetParam().name, {.steps = steps, .eta = GetParam().eta});
  }
};

// An elementwise function stands in for a network.
at::Tensor model(const at::Tensor& x, double timestep) {
  return at::sin(x * 0.9 + timestep * 0.004);
}

at::Tensor random(at::IntArrayRef shape, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::TensorOptions(at::kFloat));
}

TEST_P(SamplerTest, StepOfSliceIsSliceOfStep) {
  constexpr int64_t kSteps = 7;
  const std::unique_ptr<Sampler> sampler = make(kSteps);
  EXPECT_TRUE(sampler->is_elementwise());
  ASSERT_GE(sampler->steps(), kSteps);  // PNDM evaluates the model more often
  at::Tensor whole = random({2, 3, 13, 7}, 1) * sampler->init_noise_sigma();
  const std::vector<std::pair<int64_t, int64_t>> rows = {{0, 5}, {5, 1}, {6, 7}};  // uneven, not contiguous
  std::vector<at::Tensor> parts;
  parts.reserve(rows.size());
  for (const auto& [begin, count] : rows) parts.push_back(whole.narrow(2, begin, count));
  SamplerState state;
  std::vector<SamplerState> states(rows.size());
  for (int64_t i = 0; i < sampler->steps(); ++i) {
    const double timestep = sampler->timesteps()[static_cast<size_t>(i)];
    const at::Tensor noise = sampler->needs_noise(i) ? random(whole.sizes(), 100 + i) : at::Tensor();
    const at::Tensor output = model(sampler->scale_model_input(whole, i), timestep);
    for (size_t p = 0; p < parts.size(); ++p) {
      const std::pair<int64_t, int64_t> row = rows[p];
      const auto slice = [&](const at::Tensor& t) {
        return t.defined() ? t.narrow(2, row.first, row.second) : t;
      };
      parts[p] = sampler->step(slice(output), i, parts[p], states[p], slice(noise));
    }
    whole = sampler->step(output, i, whole, state, noise);
    EXPECT_TRUE(at::equal(at::concat(parts, 2), whole)) << "step " << i;
  }
}

TEST_P(SamplerTest, KeepsNothingOfTheCaller) {
  constexpr int64_t kSteps = 5;
  const std::unique_ptr<Sampler> sampler = make(kSteps);
  at::Tensor kept = random({2, 3}, 1);
  at::Tensor reused = kept.clone();  // written over after every step, like the model's output and the noise
  SamplerState kept_state;
  SamplerState reused_state;
  for (int64_t i = 0; i < sampler->steps(); ++i) {
    at::Tensor output = model(kept, 1);
    at::Tensor noise = sampler->needs_noise(i) ? random({2, 3}, 100 + i) : at::Tensor();
    const at::Tensor output_before = output.clone();
    const at::Tensor z_before = kept.clone();
    const at::Tensor next = sampler->step(output, i, kept, kept_state, noise);
    EXPECT_TRUE(at::equal(output, output_before));
    EXPECT_TRUE(at::equal(kept, z_before));
    kept = next;
    reused.copy_(sampler->step(output, i, reused, reused_state, noise));
    output.fill_(NAN);
    if (noise.defined()) noise.fill_(NAN);
    EXPECT_TRUE(at::equal(kept, reused)) << "step " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, SamplerTest, testing::ValuesIn(all_cases()), label_of);

// Runs the sampler on a model that returns `output(z, x, timestep)` for latents z and the model's input x.
template <typename Output>
at::Tensor run(const Sampler& sampler, at::Tensor z, const Output& output) {
  SamplerState state;
  for (int64_t i = 0; i < sampler.steps(); ++i) {
    const at::Tensor x = sampler.scale_model_input(z, i);
    const at::Tensor noise = sampler.needs_noise(i) ? random(z.sizes(), 100 + i) : at::Tensor();
    z = sampler.step(output(z, x, sampler.timesteps()[static_cast<size_t>(i)]), i, z, state, noise);
  }
  return z;
}

// Each step predicts `point`, but where latents hold noise alone, or between timesteps of an inexact
// `output`.
template <typename Output>
void expect_predictions(const Sampler& sampler, at::Tensor z, const Output& output, const at::Tensor& point) {
  SamplerState state;
  for (int64_t i = 0; i < sampler.steps(); ++i) {
    const double timestep = sampler.timesteps()[static_cast<size_t>(i)];
    const at::Tensor noise = sampler.needs_noise(i) ? random(z.sizes(), 100 + i) : at::Tensor();
    const at::Tensor m = output(z, sampler.scale_model_input(z, i), timestep);
    const at::Tensor sample = sampler.predicted_sample(m, i, z);
    z = sampler.step(m, i, z, state, noise);
    const bool is_exact = timestep == std::trunc(timestep);
    if (!is_exact || !sample.isfinite().all().item<bool>()) continue;
    EXPECT_LE((sample - point).abs().max().item<double>(), 1e-3) << "step " << i << " of " << sampler.steps();
  }
}

// The quantile of a picture depends on all of it, and on no other picture.
TEST(DynamicThresholding, IsOfWholePictures) {
  const std::unique_ptr<Sampler> sampler =
      make_sampler(parse(R"({"thresholding": true, "sample_max_value": 3})"), "unipc", {.steps = 5});
  EXPECT_FALSE(sampler->is_elementwise());
  at::Tensor both = random({2, 3, 4, 5}, 1);
  both[1].mul_(4);
  const auto output = [](const at::Tensor&, const at::Tensor& x, double timestep) {
    return model(x, timestep);
  };
  const at::Tensor together = run(*sampler, both, output);
  for (int64_t i = 0; i < 2; ++i)
    EXPECT_TRUE(at::equal(run(*sampler, both.narrow(0, i, 1), output), together.narrow(0, i, 1)));
  EXPECT_FALSE(at::equal(run(*sampler, both.narrow(2, 0, 2), output), together.narrow(2, 0, 2)));
}

// If all data is one point, the exact model is known, and every solver ends at that point in any number of
// steps.
class PointTest : public testing::TestWithParam<Case> {};

TEST_P(PointTest, EndsAtThePointThatIsAllData) {
  at::Tensor point = at::linspace(-2, 2, 6, at::kFloat);
  Json options = {
      {"prediction_type", "v_prediction"}, {"timestep_spacing", "trailing"}, {"clip_sample", false}};
  options.update(parse(GetParam().options).values());
  const JsonConfig config(options, "file.json");
  const std::string prediction = config.string("prediction_type");
  at::Tensor products = at::cumprod(1.0 - at::linspace(config.number("beta_start", 1e-4),
                                                       config.number("beta_end", 0.02), 1000, at::kFloat),
                                    0)
                            .to(at::kDouble);
  if (config.boolean("rescale_betas_zero_snr", false)) {
    const at::Tensor roots = products.sqrt();
    products = ((roots - roots[-1]) * (roots[0] / (roots[0] - roots[-1]))).square();
    if (!GetParam().name.starts_with("dd")) products[-1].fill_(std::ldexp(1.0, -24));
  }
  for (const int64_t steps : {1, 2, 3, 4, 10, 50}) {
    const std::unique_ptr<Sampler> sampler =
        make_sampler(config, GetParam().name, {.steps = steps, .eta = GetParam().eta});
    const auto output = [&](const at::Tensor& z, const at::Tensor& x, double timestep) {
      if (prediction == "sample") return point;
      if (GetParam().name == "flow-euler") return (z - point) / (timestep / 1000);
      const double product = products[static_cast<int64_t>(timestep)].item<double>();
      return (std::sqrt(product) * x - point) / std::sqrt(1 - product);
    };
    at::Tensor z = random({6}, 3) * sampler->init_noise_sigma();
    expect_predictions(*sampler, z, output, point);
    z = run(*sampler, z, output);
    EXPECT_LE((z - point).abs().max().item<double>(), 1e-5) << steps << " steps";
  }
}

// With these, sigma begins at 25. With the default ones it begins at 157, where slopes in fp32 lose more
// digits.
constexpr const char* kLatentBetas = R"({"beta_start": 0.00085, "beta_end": 0.012})";

INSTANTIATE_TEST_SUITE_P(
    All, PointTest,
    testing::Values(
        Case{"ddim", "ddim", "{}"}, Case{"ddim_zero_snr", "ddim", R"({"rescale_betas_zero_snr": true})"},
        Case{"ddim_eta", "ddim", "{}", 0.5},
        Case{"ddim_eta_zero_snr", "ddim", R"({"rescale_betas_zero_snr": true})", 1},
        Case{"euler", "euler", "{}"}, Case{"euler_zero_snr", "euler", R"({"rescale_betas_zero_snr": true})"},
        Case{"euler_karras", "euler", R"({"use_karras_sigmas": true, "prediction_type": "sample"})"},
        Case{"euler_a", "euler-a", "{}"},
        Case{"euler_a_zero_snr", "euler-a", R"({"rescale_betas_zero_snr": true})"},
        Case{"dpm", "dpm++", "{}"}, Case{"dpm_3", "dpm++", R"({"solver_order": 3})"},
        Case{"dpm_zero_snr", "dpm++", R"({"rescale_betas_zero_snr": true})"},
        Case{"dpm_beta", "dpm++", R"({"use_beta_sigmas": true, "prediction_type": "sample"})"},
        Case{"dpm_flow", "dpm++", R"({"use_flow_sigmas": true, "prediction_type": "sample"})"},
        Case{"dpm_sde", "dpm++-sde", "{}"}, Case{"unipc", "unipc", "{}"},
        Case{"unipc_4", "unipc", R"({"solver_order": 4})"},
        Case{"unipc_flow", "unipc", R"({"use_flow_sigmas": true, "prediction_type": "sample"})"},
        Case{"singlestep", "dpm++-singlestep", "{}"},
        Case{"singlestep_3", "dpm++-singlestep", R"({"solver_order": 3, "solver_type": "heun"})"},
        Case{"singlestep_flow", "dpm++-singlestep",
             R"({"use_flow_sigmas": true, "prediction_type": "sample"})"},
        Case{"ddpm", "ddpm", "{}"}, Case{"ddpm_zero_snr", "ddpm", R"({"rescale_betas_zero_snr": true})"},
        Case{"lms", "lms", kLatentBetas},
        Case{"lms_karras", "lms", R"({"use_karras_sigmas": true, "prediction_type": "sample"})"},
        Case{"heun", "heun", kLatentBetas},
        Case{"heun_karras", "heun", R"({"use_karras_sigmas": true, "prediction_type": "sample"})"},
        Case{"kdpm2", "kdpm2", kLatentBetas}, Case{"kdpm2_a", "kdpm2-a", kLatentBetas},
        Case{"flow_euler", "flow-euler", R"({"shift": 3.0})"},
        Case{"flow_euler_stochastic", "flow-euler", R"({"stochastic_sampling": true})"}),
    label_of);

constexpr const char* kLinear = R"({"beta_schedule": "linear", "beta_start": 0.0001, "beta_end": 0.02})";

// Solvers that do not end at the point, but know it all the time.
class PredictedSampleTest : public testing::TestWithParam<Case> {};

TEST_P(PredictedSampleTest, IsThePointThatIsAllData) {
  const at::Tensor point = at::linspace(-2, 2, 6, at::kFloat);
  Json options = {{"prediction_type", "v_prediction"}};
  options.update(parse(GetParam().options).values());
  const JsonConfig config(options, "file.json");
  const at::Tensor products =
      at::cumprod(1.0 - at::linspace(1e-4, 0.02, 1000, at::kFloat), 0).to(at::kDouble);
  const auto output = [&](const at::Tensor&, const at::Tensor& x, double timestep) {
    const double product = products[static_cast<int64_t>(timestep)].item<double>();
    return (std::sqrt(product) * x - point) / std::sqrt(1 - product);
  };
  const std::unique_ptr<Sampler> sampler =
      make_sampler(config, GetParam().name, {.steps = 10, .eta = GetParam().eta});
  expect_predictions(*sampler, random({6}, 3) * sampler->init_noise_sigma(), output, point);
}

INSTANTIATE_TEST_SUITE_P(
    All, PredictedSampleTest,
    testing::Values(Case{"pndm", "pndm", "{}"}, Case{"pndm_plain", "pndm", R"({"skip_prk_steps": true})"},
                    Case{"deis", "deis", "{}"}, Case{"sa", "sa-solver", "{}"}, Case{"lcm", "lcm", kLinear},
                    Case{"tcd", "tcd", kLinear, 0.3},
                    Case{"dpm_noise", "DPMSolverMultistepScheduler",
                         R"({"algorithm_type": "dpmsolver", "final_sigmas_type": "sigma_min"})"}),
    label_of);

// If the data are normal with deviation s, the ODE of flow matching only scales: the ratio of z to its
// deviation, sqrt((1 - sigma)^2 s^2 + sigma^2), is constant. The error must fall with the solver's order.
struct OrderCase {
  std::string label, name, options;
  double first_sigma, order;
};

void PrintTo(const OrderCase& value, std::ostream* out) {
  *out << value.label;
}

class OrderTest : public testing::TestWithParam<OrderCase> {};

TEST_P(OrderTest, ErrorFallsWithTheOrder) {
  constexpr double kDeviation = 0.5;
  const auto variance = [](double sigma) {
    return (1 - sigma) * (1 - sigma) * kDeviation * kDeviation + sigma * sigma;
  };
  const auto error = [&](int64_t steps) {
    const std::unique_ptr<Sampler> sampler =
        make_sampler(parse(GetParam().options), GetParam().name, {steps});
    int64_t index = 0;
    const at::Tensor z = at::ones({1}, at::kFloat);
    const auto output = [&](const at::Tensor& latents, const at::Tensor& /*x*/, double /*timestep*/) {
      const double sigma =
          GetParam().first_sigma - 0.999 * static_cast<double>(index++) / static_cast<double>(steps);
      const at::Tensor sample = latents * ((1 - sigma) * kDeviation * kDeviation / variance(sigma));
      return GetParam().name == "flow-euler" ? (latents - sample) / sigma : sample;
    };
    const double exact = kDeviation / std::sqrt(variance(GetParam().first_sigma));
    return std::abs(run(*sampler, z, output).item<double>() - exact);
  };
  EXPECT_GE(std::log2(error(80) / error(160)), GetParam().order - 0.3);
}

INSTANTIATE_TEST_SUITE_P(
    All, OrderTest,
    testing::Values(
        OrderCase{"dpm_1", "dpm++",
                  R"({"use_flow_sigmas": true, "prediction_type": "sample", "solver_order": 1})", 0.999, 1},
        OrderCase{"dpm_2", "dpm++", R"({"use_flow_sigmas": true, "prediction_type": "sample"})", 0.999, 2},
        OrderCase{"singlestep_2", "dpm++-singlestep",
                  R"({"use_flow_sigmas": true, "prediction_type": "sample"})", 0.999, 2},
        OrderCase{"unipc_2", "unipc", R"({"use_flow_sigmas": true, "prediction_type": "sample"})", 1, 2}),
    [](const testing::TestParamInfo<OrderCase>& info) { return info.param.label; });

TEST(MakeSampler, TakesTheClassOfTheFile) {
  EXPECT_FALSE(make_sampler(parse(R"({"_class_name": "DDIMScheduler"})"), {}, {4})->needs_noise(0));
  EXPECT_TRUE(
      make_sampler(parse(R"({"_class_name": "EulerAncestralDiscreteScheduler"})"), {}, {4})->needs_noise(0));
}

TEST(MakeSampler, ShortNamesStandForAnAlgorithmAndClassNamesForTheFile) {
  const std::string file = R"({"_class_name": "PNDMScheduler", "skip_prk_steps": true,
                               "algorithm_type": "sde-dpmsolver++"})";
  EXPECT_FALSE(make_sampler(parse(file), "dpm++", {4})->needs_noise(0));
  EXPECT_TRUE(make_sampler(parse(file), "DPMSolverMultistepScheduler", {4})->needs_noise(0));
  EXPECT_TRUE(make_sampler(parse("{}"), "dpm++-sde", {4})->needs_noise(0));
}

TEST(MakeSampler, NamesAreUnique) {
  for (const SamplerName& name : known_samplers()) {
    EXPECT_EQ(std::count_if(known_samplers().begin(), known_samplers().end(),
                            [&](const SamplerName& other) { return other.short_name == name.short_name; }),
              1);
    EXPECT_GE(make_sampler(parse("{}"), name.short_name, {4})->steps(), 4);
    EXPECT_GE(make_sampler(parse("{}"), name.class_name, {4})->steps(), 4);
  }
}

TEST(MakeSampler, WarnsOfAnotherKindOfNoise) {
  std::vector<std::string> warnings;
  const LogSink before = set_log_sink([&](LogLevel, const std::string& text) { warnings.push_back(text); });
  make_sampler(parse(R"({"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0})"), "ddim", {4});
  make_sampler(parse(R"({"_class_name": "EulerDiscreteScheduler"})"), "ddim", {4});
  ASSERT_EQ(warnings.size(), 1U);
  const JsonConfig flow = parse(R"({"_class_name": "DPMSolverMultistepScheduler", "use_flow_sigmas": true})");
  make_sampler(flow, "flow-euler", {4});
  EXPECT_EQ(warnings.size(), 1U);
  make_sampler(flow, "deis", {4});
  EXPECT_EQ(warnings.size(), 1U);
  make_sampler(flow, "ddim", {4});
  EXPECT_EQ(warnings.size(), 2U);
  const JsonConfig edm = parse(R"({"_class_name": "EDMDPMSolverMultistepScheduler"})");
  make_sampler(edm, "edm-euler", {4});
  EXPECT_EQ(warnings.size(), 2U);
  make_sampler(edm, "euler", {4});
  EXPECT_EQ(warnings.size(), 3U);
  set_log_sink(before);
  EXPECT_NE(warnings[0].find("FlowMatchEulerDiscreteScheduler"), std::string::npos);
}

TEST(MakeSampler, ShortNameOfDdimClipsOnlyWithItsOwnFile) {
  const auto last_of = [](const char* class_name, const char* name) {
    const auto sampler = make_sampler(JsonConfig({{"_class_name", class_name}}, "file.json"), name, {1});
    SamplerState state;
    // The model predicts no noise, so x_0 is the latents divided by a number below 1.
    const at::Tensor z = at::full({1}, 2);
    return sampler->step(at::zeros({1}), 0, z, state, {}).item<float>();
  };
  EXPECT_EQ(last_of("DDIMScheduler", "ddim"), 1);
  EXPECT_EQ(last_of("DPMSolverMultistepScheduler", "DDIMScheduler"), 1);
  EXPECT_GT(last_of("DPMSolverMultistepScheduler", "ddim"), 1.99);
}

TEST(MakeSampler, DropsTheStepBelowZeroThatTrailingRoundingGives) {
  const auto sampler = make_sampler(parse(R"({"timestep_spacing": "trailing"})"), "ddim", {61});
  EXPECT_EQ(sampler->steps(), 61);
  EXPECT_GE(sampler->timesteps().back(), 0);
}

TEST(MakeSampler, EtaIsOfDdimAndTcd) {
  for (const SamplerName& name : known_samplers()) {
    const bool is_noisy = make_sampler(parse("{}"), name.short_name, {4})->needs_noise(0);
    EXPECT_EQ(make_sampler(parse("{}"), name.short_name, {.steps = 4, .eta = 0.5})->needs_noise(0),
              is_noisy || name.short_name == "ddim" || name.short_name == "tcd")
        << name.short_name;
  }
  EXPECT_THROW(make_sampler(parse("{}"), "ddim", {.steps = 4, .eta = 1.5}), Error);
  EXPECT_THROW(make_sampler(parse("{}"), "ddim", {.steps = 4, .eta = NAN}), Error);
}

// With eta = 1 each step of DDIM is a reversed step of the diffusion process: latents that are pure noise
// keep their deviation of 1 if the model predicts that all of them is noise and the next step is as noisy.
TEST(MakeSampler, EtaOfOneDrawsTheVarianceOfTheProcess) {
  const JsonConfig config = parse(R"({"clip_sample": false, "prediction_type": "sample"})");
  const auto sampler = make_sampler(config, "ddim", {.steps = 10, .eta = 1});
  const at::Tensor products =
      at::cumprod(1.0 - at::linspace(1e-4, 0.02, 1000, at::kFloat), 0).to(at::kDouble);
  SamplerState state;
  // With latents and x_0 of zero, only the noise of the step remains.
  const at::Tensor zero = at::zeros({1}), one = at::ones({1});
  for (int64_t i = 0; i < sampler->steps(); ++i) {
    const auto timestep = static_cast<int64_t>(sampler->timesteps()[static_cast<size_t>(i)]);
    const double a = products[timestep].item<double>();
    const double next = timestep < 100 ? 1 : products[timestep - 100].item<double>();
    const double deviation = sampler->step(zero, i, zero, state, one).item<double>();
    EXPECT_NEAR(deviation, std::sqrt((1 - next) / (1 - a) * (1 - a / next)), 1e-6) << "step " << i;
  }
}

// A draw too many would change the noise of all later steps.
TEST(MakeSampler, DrawsNoiseOnlyInStepsThatNeedSome) {
  const auto draws = [](const char* name, const char* options, double eta = 0) {
    const auto sampler = make_sampler(parse(options), name, {.steps = 4, .eta = eta});
    std::vector<bool> needs;
    for (int64_t i = 0; i < sampler->steps(); ++i) needs.push_back(sampler->needs_noise(i));
    return needs;
  };
  using Draws = std::vector<bool>;
  EXPECT_EQ(draws("euler-a", "{}"), (Draws{true, true, true, true}));
  EXPECT_EQ(draws("ddpm", "{}"), (Draws{true, true, true, false}));  // the last one is at timestep 0
  EXPECT_EQ(draws("ddpm", R"({"steps_offset": 1})"), (Draws{true, true, true, true}));
  EXPECT_EQ(draws("lcm", "{}"), (Draws{true, true, true, false}));
  EXPECT_EQ(draws("tcd", "{}", 0.3), (Draws{true, true, true, false}));
  EXPECT_EQ(draws("kdpm2-a", "{}"), (Draws{false, true, false, true, false, true, false}));
}

// A consistency function is the identity at timestep 0, and gives x_0 at all later ones.
TEST(MakeSampler, LcmEndsAtTheLatentsOfTimestepZero) {
  const auto last = [](const char* options) {
    const auto sampler = make_sampler(parse(options), "lcm", {.steps = 100});
    SamplerState state;
    EXPECT_EQ(sampler->timesteps().back(), 0);
    return sampler->step(at::ones({1}), sampler->steps() - 1, at::full({1}, 3), state, {}).item<float>();
  };
  EXPECT_EQ(last(R"({"original_inference_steps": 100, "num_train_timesteps": 100})"), 3);
}

TEST(MakeSampler, PndmAsksForTimestepsAgain) {
  const auto timesteps = [](const char* options) {
    return make_sampler(parse(options), "PNDMScheduler", {4})->timesteps();
  };
  EXPECT_EQ(timesteps(R"({"skip_prk_steps": true, "steps_offset": 1})"),
            (std::vector<double>{751, 501, 501, 251, 1}));
  EXPECT_EQ(timesteps(R"({"steps_offset": 1})"),
            (std::vector<double>{751, 626, 626, 501, 501, 376, 376, 251, 251, 126, 126, 1, 1}));
}

TEST(MakeSampler, ShortNameOfPndmWarmsUpOnlyWithItsOwnFile) {
  const auto evaluations = [](const char* class_name, const char* name) {
    return make_sampler(JsonConfig({{"_class_name", class_name}}, "file.json"), name, {20})->steps();
  };
  EXPECT_EQ(evaluations("PNDMScheduler", "pndm"), 29);
  EXPECT_EQ(evaluations("DDIMScheduler", "PNDMScheduler"), 29);
  EXPECT_EQ(evaluations("DDIMScheduler", "pndm"), 21);
}

// Every class accepts the options of every other.
TEST(MakeSampler, TakesTheFilesOfReleasedModels) {
  const std::string shared = R"("beta_end": 0.012, "beta_schedule": "scaled_linear", "beta_start": 0.00085,
      "clip_sample": false, "num_train_timesteps": 1000, "set_alpha_to_one": false, "skip_prk_steps": true,
      "steps_offset": 1, "trained_betas": null, "_diffusers_version": "0.8.0")";
  for (const char* own : {R"("_class_name": "PNDMScheduler")",
                          R"("_class_name": "DDIMScheduler", "prediction_type": "v_prediction")",
                          R"("_class_name": "EulerDiscreteScheduler", "interpolation_type": "linear",
                             "sample_max_value": 1.0, "timestep_spacing": "leading", "use_karras_sigmas": false)",
                          R"("_class_name": "EulerAncestralDiscreteScheduler", "interpolation_type": "linear",
                             "sample_max_value": 1.0, "timestep_spacing": "trailing")"}) {
    const JsonConfig config = parse(fmt::format("{{{}, {}}}", own, shared));
    EXPECT_GE(make_sampler(config, {}, {20})->steps(), 20) << own;
    for (const SamplerName& name : known_samplers())
      EXPECT_GE(make_sampler(config, name.short_name, {20})->steps(), 20) << own << name.short_name;
  }
}

}  // namespace
}  // namespace tessera::samplers
