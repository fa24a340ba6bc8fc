#include "samplers/options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <sstream>

#include "core/error.h"
#include "core/log.h"
#include "core/text.h"

namespace tessera::samplers {
namespace {

using Names = std::vector<std::string>;

Names words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

// tools/parity/samplers.py compares this table with the signatures of diffusers.
std::map<std::string, Names> make_table() {
  const std::string betas = "num_train_timesteps beta_start beta_end beta_schedule trained_betas ",
                    spacing = "timestep_spacing steps_offset ",
                    respaced = "use_karras_sigmas use_exponential_sigmas use_beta_sigmas ",
                    thresholding = "thresholding dynamic_thresholding_ratio sample_max_value ",
                    flow = "use_flow_sigmas flow_shift ", shifting = "use_dynamic_shifting time_shift_type ",
                    clip = "clip_sample clip_sample_range ", prediction = "prediction_type ",
                    solver = "solver_order solver_type lower_order_final ",
                    kdpm2 = betas + respaced + prediction + spacing,
                    consistency = betas + prediction + spacing + thresholding + clip +
                                  "original_inference_steps set_alpha_to_one timestep_scaling "
                                  "rescale_betas_zero_snr",
                    dpm = betas + prediction + solver + thresholding + respaced + flow + shifting +
                          "algorithm_type final_sigmas_type lambda_min_clipped variance_type ",
                    edm = prediction +
                          "num_train_timesteps sigma_min sigma_max sigma_data sigma_schedule rho "
                          "final_sigmas_type ";
  const std::map<std::string, std::string> texts = {
      {"DDIMScheduler",
       betas + prediction + spacing + thresholding + clip + "set_alpha_to_one rescale_betas_zero_snr"},
      {"PNDMScheduler", betas + prediction + spacing + "skip_prk_steps set_alpha_to_one"},
      {"EulerDiscreteScheduler", betas + prediction + spacing + respaced +
                                     "interpolation_type sigma_min sigma_max timestep_type "
                                     "rescale_betas_zero_snr final_sigmas_type"},
      {"EulerAncestralDiscreteScheduler", betas + prediction + spacing + "rescale_betas_zero_snr"},
      {"DPMSolverMultistepScheduler", dpm + spacing + "euler_at_final use_lu_lambdas rescale_betas_zero_snr"},
      {"DPMSolverSinglestepScheduler", dpm},
      {"DEISMultistepScheduler",
       betas + prediction + solver + spacing + thresholding + respaced + flow + shifting + "algorithm_type"},
      {"SASolverScheduler", betas + prediction + spacing + thresholding + respaced + flow +
                                "predictor_order corrector_order tau_func algorithm_type lower_order_final "
                                "lambda_min_clipped variance_type"},
      {"UniPCMultistepScheduler", betas + prediction + solver + spacing + thresholding + respaced + flow +
                                      shifting +
                                      "predict_x0 disable_corrector solver_p final_sigmas_type "
                                      "rescale_betas_zero_snr sigma_min sigma_max shift_terminal"},
      {"DDPMScheduler",
       betas + prediction + spacing + thresholding + clip + "variance_type rescale_betas_zero_snr"},
      {"LMSDiscreteScheduler", kdpm2},
      {"HeunDiscreteScheduler", kdpm2 + clip},
      {"KDPM2DiscreteScheduler", kdpm2},
      {"KDPM2AncestralDiscreteScheduler", kdpm2},
      {"LCMScheduler", consistency},
      {"TCDScheduler", consistency},
      {"EDMEulerScheduler", edm},
      {"EDMDPMSolverMultistepScheduler", edm + solver + thresholding + "algorithm_type euler_at_final"},
      {"FlowMatchEulerDiscreteScheduler", shifting + respaced +
                                              "num_train_timesteps shift base_shift max_shift "
                                              "base_image_seq_len max_image_seq_len invert_sigmas "
                                              "shift_terminal stochastic_sampling"}};
  std::map<std::string, Names> table;
  for (const auto& [class_name, text] : texts) table[class_name] = words(text);
  return table;
}

// Reads the value as its type, which throws Error(kInput) for another one.
void read_value(const JsonConfig& options, const OptionInfo& info) {
  switch (info.type) {
    case OptionType::kFlag:
      options.boolean(info.name);
      return;
    case OptionType::kInteger:
      options.integer(info.name);
      return;
    case OptionType::kNumber:
      options.number(info.name);
      return;
    case OptionType::kText:
      options.string(info.name);
      return;
    case OptionType::kIntegers:
      options.integers(info.name);
      return;
    case OptionType::kNumbers:
      options.numbers(info.name);
      return;
    case OptionType::kPython:
      return;
  }
}

// Values are written as diffusers' users write them.
const std::map<std::string, Json> kPythonWords = {{"True", true}, {"False", false}, {"None", nullptr}};

Json read_json_or_word(const std::string& text) {
  try {
    return parse_json(text, "");
  } catch (const Error&) {
    return text;
  }
}

[[noreturn]] void refuse_unknown(const std::string& class_name, const std::string& key) {
  const Names& known = options_of(class_name);
  const auto nearest = nearest_word(key, known);
  usage_error(field("scheduler_option"), "{} has no option '{}'; {}it has {}", class_name, printable(key),
              nearest ? fmt::format("did you mean {}? ", *nearest) : "", fmt::join(known, ", "));
}

auto find_option(const std::string& name) {
  return std::find_if(all_options().begin(), all_options().end(),
                      [&](const OptionInfo& info) { return info.name == name; });
}

const std::array<std::string, 4> kPredictionNames = {"epsilon", "sample", "v_prediction", "flow_prediction"};

// Names the options that the file lacks although diffusers has a key for the same.
constexpr const char* kAbsentKeys = "_use_default_values";

// Lists options of schedulers that do not run here, and those that older releases wrote.
constexpr std::array<std::string_view, 8> kOtherOptions = {
    "clip_denoised", "noise_sampler_seed", "predict_epsilon", "quantization_config",
    "s_noise",       "snr_shift_scale",    "tensor_format",   "timestep_values",
};

}  // namespace

const std::vector<OptionInfo>& all_options() {
  static const std::vector<OptionInfo> all = [] {
    const std::map<OptionType, std::string> texts = {
        {OptionType::kFlag,
         "clip_sample euler_at_final invert_sigmas lower_order_final predict_x0 rescale_betas_zero_snr "
         "set_alpha_to_one skip_prk_steps stochastic_sampling thresholding use_beta_sigmas "
         "use_dynamic_shifting use_exponential_sigmas use_flow_sigmas use_karras_sigmas use_lu_lambdas"},
        {OptionType::kInteger,
         "base_image_seq_len corrector_order max_image_seq_len num_train_timesteps original_inference_steps "
         "predictor_order solver_order steps_offset"},
        {OptionType::kNumber,
         "base_shift beta_end beta_start clip_sample_range dynamic_thresholding_ratio flow_shift "
         "lambda_min_clipped max_shift rho sample_max_value shift shift_terminal sigma_data sigma_max "
         "sigma_min timestep_scaling"},
        {OptionType::kText,
         "algorithm_type beta_schedule final_sigmas_type interpolation_type prediction_type sigma_schedule "
         "solver_type time_shift_type timestep_spacing timestep_type variance_type"},
        {OptionType::kIntegers, "disable_corrector"},
        {OptionType::kNumbers, "trained_betas"},
        {OptionType::kPython, "solver_p tau_func"}};
    std::vector<OptionInfo> result;
    for (const auto& [type, text] : texts) {
      for (const std::string& name : words(text)) result.push_back({name, type});
    }
    return result;
  }();
  return all;
}

const std::vector<std::string>& options_of(const std::string& class_name) {
  static const std::map<std::string, Names> table = make_table();
  static const Names none;
  const auto found = table.find(class_name);
  return found == table.end() ? none : found->second;
}

bool has_option(const std::string& class_name, std::string_view option) {
  const Names& names = options_of(class_name);
  return std::find(names.begin(), names.end(), option) != names.end();
}

Json parse_options(const std::vector<std::string>& texts) {
  Json options = Json::object();
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
      usage_error(field("scheduler_option"), "expected KEY=VALUE, as use_karras_sigmas=true, got '{}'",
                  printable(text));
    const std::string key = text.substr(0, equals);
    if (options.contains(key)) usage_error(field("scheduler_option"), "'{}' is given twice", printable(key));
    const std::string value = text.substr(equals + 1);
    const auto python = kPythonWords.find(value);
    options[key] = python == kPythonWords.end() ? read_json_or_word(value) : python->second;
  }
  return options;
}

void check_options(const std::string& class_name, const Json& options) {
  const JsonConfig config(options, field("scheduler_option"));
  for (const auto& [key, value] : options.items()) {
    if (!has_option(class_name, key)) refuse_unknown(class_name, key);
    const auto info = find_option(key);
    TESSERA_CHECK(info != all_options().end(), "no type for {}", key);
    if (value.is_null()) continue;
    try {
      read_value(config, *info);
    } catch (const Error& error) {
      blame_options(error, config.where());
    }
  }
}

void blame_options(const Error& error, const std::string& where) {
  usage_error(field("scheduler_option"), "{}", error.message().substr(fmt::format("[{}] ", where).size()));
}

void warn_of_unknown_options(const JsonConfig& config) {
  std::vector<std::string> unknown;
  for (const auto& [key, value] : config.values().items()) {
    const bool known = key.starts_with('_') || find_option(key) != all_options().end() ||
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

void refuse_learned_variance(const JsonConfig& config) {
  const std::string variance = config.string("variance_type", "", Null::kDefault);
  if (variance == "learned" || variance == "learned_range") refuse_option(config, "variance_type");
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
