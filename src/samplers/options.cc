#include "samplers/options.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/log.h"

namespace tessera::samplers {
namespace {

const std::array<std::string, 4> kPredictionNames = {"epsilon", "sample", "v_prediction", "flow_prediction"};

// Names the options that the file lacks; diffusers' key for the same.
constexpr const char* kAbsentKeys = "_use_default_values";

// The options that diffusers' schedulers write, including those of older releases.
constexpr std::array<std::string_view, 63> kOptions = {
    "algorithm_type",
    "base_image_seq_len",
    "base_shift",
    "beta_end",
    "beta_schedule",
    "beta_start",
    "clip_denoised",
    "clip_sample",
    "clip_sample_range",
    "corrector_order",
    "disable_corrector",
    "dynamic_thresholding_ratio",
    "euler_at_final",
    "final_sigmas_type",
    "flow_shift",
    "interpolation_type",
    "invert_sigmas",
    "lambda_min_clipped",
    "lower_order_final",
    "max_image_seq_len",
    "max_shift",
    "noise_sampler_seed",
    "num_train_timesteps",
    "original_inference_steps",
    "predict_epsilon",
    "predict_x0",
    "prediction_type",
    "predictor_order",
    "quantization_config",
    "rescale_betas_zero_snr",
    "rho",
    "s_noise",
    "sample_max_value",
    "set_alpha_to_one",
    "shift",
    "shift_terminal",
    "sigma_data",
    "sigma_max",
    "sigma_min",
    "sigma_schedule",
    "skip_prk_steps",
    "snr_shift_scale",
    "solver_order",
    "solver_p",
    "solver_type",
    "steps_offset",
    "stochastic_sampling",
    "tau_func",
    "tensor_format",
    "thresholding",
    "time_shift_type",
    "timestep_scaling",
    "timestep_spacing",
    "timestep_type",
    "timestep_values",
    "trained_betas",
    "use_beta_sigmas",
    "use_dynamic_shifting",
    "use_exponential_sigmas",
    "use_flow_sigmas",
    "use_karras_sigmas",
    "use_lu_lambdas",
    "variance_type",
};

}  // namespace

void warn_of_unknown_options(const JsonConfig& config) {
  std::vector<std::string> unknown;
  for (const auto& [key, value] : config.values().items()) {
    const bool known =
        key.starts_with('_') || std::find(kOptions.begin(), kOptions.end(), key) != kOptions.end();
    if (!known && !value.is_null() && value != Json(false)) unknown.push_back(key);
  }
  if (!unknown.empty())
    log_warning("[{}] options without effect: {}", config.where(), fmt::join(unknown, ", "));
}

JsonConfig with_stable_diffusion_options(const JsonConfig& config) {
  const Json overrides = {{"steps_offset", 1}, {"clip_sample", false}};
  Json options = config.values();
  Json absent = Json::array();
  for (const auto& [key, value] : overrides.items()) {
    if (!options.contains(key)) absent.push_back(key);
    options[key] = value;
  }
  options[kAbsentKeys] = std::move(absent);
  return {std::move(options), config.where()};
}

Json without_pipeline_defaults(const JsonConfig& config) {
  Json options = config.values();
  for (const Json& key : options.value(kAbsentKeys, Json::array())) {
    if (key.is_string()) options.erase(key.get<std::string>());
  }
  return options;
}

std::string read_choice(const JsonConfig& config, const std::string& key, const std::string& fallback,
                        std::initializer_list<std::string> allowed) {
  std::string value = config.string(key, fallback);
  if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) {
    config.fail(key, fmt::format("one of {}", fmt::join(allowed, ", ")));
  }
  return value;
}

void refuse_option(const JsonConfig& config, const std::string& key) {
  if (!config.has(key) || config.values().at(key) == Json(false)) return;
  input_error(config.where(), "'{}' is not supported; remove it, or choose another sampler with {}", key,
              field("scheduler"));
}

Prediction read_prediction(const JsonConfig& config, std::initializer_list<Prediction> allowed) {
  std::vector<std::string> names;
  const std::string value = config.string("prediction_type", kPredictionNames[0]);
  for (const Prediction prediction : allowed) {
    names.push_back(kPredictionNames.at(static_cast<size_t>(prediction)));
    if (names.back() == value) return prediction;
  }
  config.fail("prediction_type", fmt::format("one of {}", fmt::join(names, ", ")));
}

Prediction read_prediction(const JsonConfig& config, bool flow) {
  using enum Prediction;
  return flow ? read_prediction(config, {kEpsilon, kSample, kVelocity, kFlow})
              : read_prediction(config, {kEpsilon, kSample, kVelocity});
}

}  // namespace tessera::samplers
