#include "samplers/options.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/log.h"
#include "samplers/class_options.h"

namespace tessera::samplers {
namespace {

const std::array<std::string, 4> kPredictionNames = {"epsilon", "sample", "v_prediction", "flow_prediction"};

// Names the options that the file lacks; diffusers' key for the same.
constexpr const char* kAbsentKeys = "_use_default_values";

// Options of schedulers that do not run here, and those that older releases wrote.
constexpr std::array<std::string_view, 8> kOtherOptions = {
    "clip_denoised", "noise_sampler_seed", "predict_epsilon", "quantization_config",
    "s_noise",       "snr_shift_scale",    "tensor_format",   "timestep_values",
};

}  // namespace

void warn_of_unknown_options(const JsonConfig& config) {
  std::vector<std::string> unknown;
  for (const auto& [key, value] : config.values().items()) {
    const bool known = key.starts_with('_') || is_option(key) ||
                       std::find(kOtherOptions.begin(), kOtherOptions.end(), key) != kOtherOptions.end();
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
