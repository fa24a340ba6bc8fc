// What samplers refuse, and the words for it.
#include <gtest/gtest.h>

#include <limits>

#include "core/error.h"
#include "samplers/sampler.h"

namespace tessera::samplers {
namespace {

std::string error_of(const std::string& options, const std::optional<std::string>& name, int64_t steps = 20) {
  try {
    make_sampler({parse_json(options, "file.json"), "file.json"}, name, {steps, 64});
  } catch (const Error& error) {
    return fmt::format("{} {}", error.exit_code(), error.what());
  }
  return "none";
}

TEST(MakeSampler, NamesTheLargestNumberOfStepsThatWorks) {
  const auto expect = [](const char* name, const char* options, int64_t most) {
    for (const int64_t steps : {most + 1, int64_t{1001}, std::numeric_limits<int64_t>::max()}) {
      EXPECT_EQ(error_of(options, name, steps),
                fmt::format(
                    "2 [num_inference_steps] must be at most {} with {} and the options of file.json, got {}",
                    most, name, steps));
    }
    EXPECT_EQ(error_of(options, name, most), "none");
  };
  expect("ddim", "{}", 1000);
  expect("ddim", R"({"steps_offset": 1})", 999);  // 1000 steps reach beyond the last timestep
  expect("pndm", R"({"steps_offset": 1, "skip_prk_steps": true})", 999);
  expect("euler", "{}", 1000);
  expect("lcm", "{}", 50);
  expect("tcd", R"({"original_inference_steps": 70})", 70);
  expect("dpm++-singlestep", "{}", 1000);
  expect("sa-solver", "{}", 999);
  expect("deis", R"({"num_train_timesteps": 50})", 49);
  for (const char* name : {"dpm++", "dpm++-sde", "unipc"}) {
    expect(name, "{}", 999);  // two of 1000 steps would share a timestep
    expect(name, R"({"timestep_spacing": "leading"})", 999);
    expect(name, R"({"timestep_spacing": "trailing"})", 1000);
    expect(name, R"({"num_train_timesteps": 50})", 49);
  }
}

// Its noise levels lie anywhere between those of training.
TEST(MakeSampler, TakesMoreStepsOfFlowMatchingThanTimestepsOfTraining) {
  EXPECT_EQ(error_of("{}", "flow-euler", 1001), "none");
  EXPECT_EQ(error_of(R"({"num_train_timesteps": 1})", "flow-euler", 3), "none");
}

// Pipelines that hand noise levels to their schedulers have others that cannot take them.
TEST(MakeSampler, NamesASamplerThatTakesNoiseLevels) {
  const auto error = [](const char* file, const std::optional<std::string>& name) {
    try {
      make_sampler({parse_json(file, "file.json"), "file.json"}, name, {.steps = 4, .has_even_sigmas = true});
    } catch (const Error& error) {
      return fmt::format("{} {}", error.exit_code(), error.what());
    }
    return std::string("none");
  };
  const char* const flow = R"({"_class_name": "FlowMatchEulerDiscreteScheduler"})";
  EXPECT_EQ(error(flow, std::nullopt), "none");
  EXPECT_EQ(error(flow, "flow-euler"), "none");
  EXPECT_EQ(
      error(flow, "euler"),
      "2 [scheduler] the model hands its noise levels to its sampler; EulerDiscreteScheduler cannot take "
      "them, got 'euler'; flow-euler can");
  EXPECT_EQ(
      error(R"({"_class_name": "UniPCMultistepScheduler"})", std::nullopt),
      "3 [file.json] the model hands its noise levels to its sampler; UniPCMultistepScheduler cannot take "
      "them; give scheduler flow-euler");
  EXPECT_EQ(
      error(R"({"_class_name": "FlowMatchHeunDiscreteScheduler"})", std::nullopt),
      "3 [file.json] the model's sampler, FlowMatchHeunDiscreteScheduler, cannot run yet; give scheduler "
      "flow-euler");
}

struct ErrorCase {
  std::string name, options;
  int64_t steps;
  std::string message;  // starts with the exit code
};

void PrintTo(const ErrorCase& value, std::ostream* out) {
  *out << value.name << " " << value.options;
}

class ErrorTest : public testing::TestWithParam<ErrorCase> {};

TEST_P(ErrorTest, SaysWhatIsWrong) {
  const ErrorCase& expected = GetParam();
  const std::string message = error_of(
      expected.options, expected.name.empty() ? std::nullopt : std::optional(expected.name), expected.steps);
  EXPECT_EQ(message.substr(0, expected.message.size()), expected.message) << message;
}

INSTANTIATE_TEST_SUITE_P(
    All, ErrorTest,
    testing::Values(
        ErrorCase{"magic", "{}", 4,
                  "2 [scheduler] unknown sampler 'magic'; known are ddim, pndm, euler[-karras], "},
        ErrorCase{"euler-b", "{}", 4,
                  "2 [scheduler] unknown sampler 'euler-b'; did you mean euler-a? known are ddim, pndm, "},
        ErrorCase{"", "{}", 4, "3 [file.json] '_class_name' must be a string, but it is missing"},
        ErrorCase{"", R"({"_class_name": "ScoreSdeVeScheduler"})", 4,
                  "3 [file.json] the model's sampler, ScoreSdeVeScheduler, cannot run yet; give scheduler "
                  "one of ddim, pndm, euler[-karras], "},
        ErrorCase{"PNDMScheduler", "{}", 3,
                  "2 [num_inference_steps] must be at least 4 for PNDM with skip_prk_steps = false, got 3"},
        ErrorCase{"pndm", R"({"prediction_type": "sample"})", 4,
                  "3 [file.json] 'prediction_type' must be one of epsilon, v_prediction"},
        ErrorCase{"ddim", "{}", 0, "2 [num_inference_steps] must be 1 or more, got 0"},
        ErrorCase{"ddim", R"({"num_train_timesteps": 0})", 4,
                  "3 [file.json] 'num_train_timesteps' must be from 1 to"},
        ErrorCase{"ddim", R"({"steps_offset": 999})", 4,
                  "2 [num_inference_steps] must be at most 1 with ddim"},
        ErrorCase{"ddim", R"({"timestep_spacing": null})", 4,
                  "3 [file.json] 'timestep_spacing' must be a string, got null"},
        ErrorCase{"ddim", R"({"thresholding": true, "dynamic_thresholding_ratio": 1.5})", 4,
                  "3 [file.json] 'dynamic_thresholding_ratio' must be from 0 to 1, got 1.5"},
        ErrorCase{"dpm++", R"({"thresholding": true, "sample_max_value": 0})", 4,
                  "3 [file.json] 'sample_max_value' must be positive, got 0"},
        ErrorCase{"dpm++", R"({"use_dynamic_shifting": true})", 4,
                  "3 [file.json] 'use_dynamic_shifting' is not"},
        ErrorCase{"dpm++", R"({"variance_type": "learned_range"})", 4,
                  "3 [file.json] 'variance_type' is not supported"},
        ErrorCase{"dpm++", R"({"solver_order": 0})", 4, "3 [file.json] 'solver_order' must be positive"},
        ErrorCase{
            "DPMSolverMultistepScheduler",
            R"({"algorithm_type": "sde-dpmsolver", "solver_order": 3, "final_sigmas_type": "sigma_min"})", 4,
            "3 [file.json] 'solver_order' must be 1 or 2 with sde-dpmsolver"},
        ErrorCase{"DPMSolverMultistepScheduler", R"({"algorithm_type": "dpmsolver"})", 4,
                  "3 [file.json] 'final_sigmas_type' must be sigma_min with algorithm_type dpmsolver"},
        ErrorCase{"DPMSolverMultistepScheduler", R"({"algorithm_type": "x"})", 4,
                  "3 [file.json] 'algorithm_type' must"},
        ErrorCase{"dpm++", R"({"lambda_min_clipped": 99})", 4,
                  "3 [file.json] 'lambda_min_clipped' must be below"},
        ErrorCase{"dpm++", R"({"prediction_type": "flow_prediction"})", 4,
                  "3 [file.json] 'prediction_type' must be one"},
        ErrorCase{"unipc", R"({"solver_p": {}})", 4, "3 [file.json] 'solver_p' is not supported"},
        ErrorCase{"unipc", R"({"use_dynamic_shifting": true})", 4,
                  "3 [file.json] 'use_dynamic_shifting' is not"},
        ErrorCase{"unipc", R"({"shift_terminal": 0.1})", 4,
                  "3 [file.json] 'shift_terminal' is not supported"},
        ErrorCase{"unipc", R"({"solver_order": 0})", 4, "3 [file.json] 'solver_order' must be positive"},
        ErrorCase{"unipc", R"({"lower_order_final": false})", 4, "3 [file.json] step 4 of 4 divides by zero"},
        ErrorCase{"ddpm", R"({"variance_type": "learned_range"})", 4,
                  "3 [file.json] 'variance_type' is not supported"},
        ErrorCase{"ddpm", R"({"variance_type": "fixed_large_log"})", 4,
                  "3 [file.json] 'variance_type' must be one of fixed_small, fixed_small_log, fixed_large"},
        ErrorCase{
            "lcm", R"({"original_inference_steps": 0})", 4,
            "3 [file.json] 'original_inference_steps' must be from 1 to num_train_timesteps = 1000, got 0"},
        ErrorCase{"kdpm2", R"({"prediction_type": "sample"})", 4,
                  "3 [file.json] 'prediction_type' must be one of epsilon, v_prediction"},
        ErrorCase{"dpm++-singlestep", R"({"solver_order": 4})", 4,
                  "3 [file.json] 'solver_order' must be from 1 to 3"},
        ErrorCase{"DPMSolverSinglestepScheduler",
                  R"({"algorithm_type": "sde-dpmsolver", "final_sigmas_type": "sigma_min"})", 4,
                  "3 [file.json] 'algorithm_type' must be one of dpmsolver++, sde-dpmsolver++, dpmsolver"},
        ErrorCase{"deis", R"({"algorithm_type": "sde-dpmsolver++"})", 4,
                  "3 [file.json] 'algorithm_type' must be one of deis, dpmsolver, dpmsolver++"},
        ErrorCase{"sa-solver", R"({"predictor_order": 5})", 4,
                  "3 [file.json] 'predictor_order' must be from 1 to 4"},
        ErrorCase{"sa-solver", R"({"tau_func": 0.5})", 4, "3 [file.json] 'tau_func' is not supported"},
        ErrorCase{"SASolverScheduler", R"({"algorithm_type": "dpmsolver++"})", 4,
                  "3 [file.json] 'algorithm_type' must be one of data_prediction, noise_prediction"},
        ErrorCase{"edm-euler", R"({"prediction_type": "sample"})", 4,
                  "3 [file.json] 'prediction_type' must be one of epsilon, v_prediction"},
        ErrorCase{"EDMDPMSolverMultistepScheduler",
                  R"({"algorithm_type": "sde-dpmsolver++", "solver_order": 3})", 4,
                  "3 [file.json] 'solver_order' must be 1 or 2 with sde-dpmsolver++"},
        ErrorCase{"euler-a", R"({"prediction_type": "sample"})", 4,
                  "3 [file.json] 'prediction_type' must be one of"},
        ErrorCase{"euler", R"({"beta_schedule": "x"})", 4,
                  "3 [file.json] 'beta_schedule' must be one of linear,"},
        ErrorCase{"euler", R"({"trained_betas": [0.1]})", 4,
                  "3 [file.json] 'trained_betas' must be a list of num_tr"},
        ErrorCase{"euler", R"({"timestep_spacing": "x"})", 4,
                  "3 [file.json] 'timestep_spacing' must be one of"},
        ErrorCase{"euler", R"({"final_sigmas_type": "x"})", 4,
                  "3 [file.json] 'final_sigmas_type' must be one of"},
        ErrorCase{
            "euler", R"({"trained_betas": [2, 0.5], "num_train_timesteps": 2})", 2,
            "3 [file.json] 'trained_betas' must be a list of num_train_timesteps = 2 numbers from 0 to 1"},
        ErrorCase{"euler", R"({"beta_start": NaN})", 4,
                  "3 [file.json] 'beta_start' must be a number from 0 to 1, got nan"},
        ErrorCase{"ddim", R"({"beta_end": -0.5})", 4,
                  "3 [file.json] 'beta_end' must be a number from 0 to 1, got -0.5"},
        ErrorCase{"euler", R"({"beta_schedule": "scaled_linear", "beta_start": 8e90})", 4,
                  "3 [file.json] 'beta_start' must be a number that fp32 can hold, got 8e+90"},
        ErrorCase{"ddim", R"({"timestep_spacing": "leading", "steps_offset": 9223372036854775807})", 4,
                  "3 [file.json] 'steps_offset' must be an integer from 0 to 999"},
        ErrorCase{"ddim", R"({"timestep_spacing": "leading", "steps_offset": -1})", 4,
                  "3 [file.json] 'steps_offset' must be an integer from 0 to 999, got -1"},
        ErrorCase{
            "euler", R"({"use_karras_sigmas": true, "use_beta_sigmas": true})", 4,
            "3 [file.json] set only one of use_karras_sigmas, use_exponential_sigmas and use_beta_sigmas"},
        ErrorCase{"ddim",
                  R"({"rescale_betas_zero_snr": true, "timestep_spacing": "trailing", "clip_sample": false})",
                  4, "3 [file.json] step 1 of 4 divides by zero"},
        ErrorCase{"flow-euler", R"({"time_shift_type": "x", "use_dynamic_shifting": true})", 4,
                  "3 [file.json] 'time_shift_type' must be one of"}));

}  // namespace
}  // namespace tessera::samplers
