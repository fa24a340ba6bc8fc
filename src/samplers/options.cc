#include "samplers/options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <stdexcept>

#include "core/error.h"
#include "core/log.h"
#include "core/text.h"

namespace tessera::samplers {
namespace {

using Names = std::vector<std::string>;

constexpr std::array<std::string_view, 19> kClasses = {
    "DDIMScheduler",
    "DDPMScheduler",
    "DEISMultistepScheduler",
    "DPMSolverMultistepScheduler",
    "DPMSolverSinglestepScheduler",
    "EDMDPMSolverMultistepScheduler",
    "EDMEulerScheduler",
    "EulerAncestralDiscreteScheduler",
    "EulerDiscreteScheduler",
    "FlowMatchEulerDiscreteScheduler",
    "HeunDiscreteScheduler",
    "KDPM2AncestralDiscreteScheduler",
    "KDPM2DiscreteScheduler",
    "LCMScheduler",
    "LMSDiscreteScheduler",
    "PNDMScheduler",
    "SASolverScheduler",
    "TCDScheduler",
    "UniPCMultistepScheduler",
};

// Sets of the classes, with a bit for each.
using Classes = uint32_t;
constexpr Classes only(std::string_view class_name) {
  Classes bit = 1;
  for (const std::string_view each : kClasses) {
    if (each == class_name) return bit;
    bit <<= 1;
  }
  throw std::logic_error("no such class");  // does not compile
}
constexpr Classes kAll = (Classes{1} << kClasses.size()) - 1;
constexpr Classes kDdim = only("DDIMScheduler"), kDdpm = only("DDPMScheduler"), kPndm = only("PNDMScheduler"),
                  kEuler = only("EulerDiscreteScheduler"), kHeun = only("HeunDiscreteScheduler"),
                  kEulerAncestral = only("EulerAncestralDiscreteScheduler"),
                  kDpm = only("DPMSolverMultistepScheduler"),
                  kSinglestep = only("DPMSolverSinglestepScheduler"), kDeis = only("DEISMultistepScheduler"),
                  kSaSolver = only("SASolverScheduler"), kUniPc = only("UniPCMultistepScheduler"),
                  kConsistency = only("LCMScheduler") | only("TCDScheduler"),
                  kEdmDpm = only("EDMDPMSolverMultistepScheduler"),
                  kEdm = only("EDMEulerScheduler") | kEdmDpm,
                  kFlowMatch = only("FlowMatchEulerDiscreteScheduler");
constexpr Classes kWithBetas = kAll & ~(kEdm | kFlowMatch), kWithSpacing = kWithBetas & ~kSinglestep,
                  kRespaced = kAll & ~(kDdim | kDdpm | kPndm | kEulerAncestral | kConsistency | kEdm),
                  kDpmLike = kDpm | kSinglestep | kDeis | kUniPc, kWithFlow = kDpmLike | kSaSolver,
                  kThresholding = kWithFlow | kEdmDpm | kDdim | kDdpm | kConsistency,
                  kClipping = kDdim | kDdpm | kHeun | kConsistency;

struct Option {
  std::string_view name;
  OptionType type;
  Classes classes;
};

// tools/parity/samplers.py compares this table with the signatures of diffusers.
constexpr auto kOptions = [] {
  using enum OptionType;
  return std::to_array<Option>({
      {"num_train_timesteps", kInteger, kAll},
      {"beta_start", kNumber, kWithBetas},
      {"beta_end", kNumber, kWithBetas},
      {"beta_schedule", kText, kWithBetas},
      {"trained_betas", kNumbers, kWithBetas},
      {"prediction_type", kText, kAll & ~kFlowMatch},
      {"timestep_spacing", kText, kWithSpacing},
      {"steps_offset", kInteger, kWithSpacing},
      {"timestep_type", kText, kEuler},
      {"timestep_scaling", kNumber, kConsistency},
      {"original_inference_steps", kInteger, kConsistency},
      {"skip_prk_steps", kFlag, kPndm},
      {"set_alpha_to_one", kFlag, kDdim | kPndm | kConsistency},
      {"rescale_betas_zero_snr", kFlag,
       kDdim | kDdpm | kDpm | kEuler | kEulerAncestral | kConsistency | kUniPc},
      {"variance_type", kText, kDdpm | kDpm | kSinglestep | kSaSolver},
      {"clip_sample", kFlag, kClipping},
      {"clip_sample_range", kNumber, kClipping},
      {"thresholding", kFlag, kThresholding},
      {"dynamic_thresholding_ratio", kNumber, kThresholding},
      {"sample_max_value", kNumber, kThresholding},
      {"use_karras_sigmas", kFlag, kRespaced},
      {"use_exponential_sigmas", kFlag, kRespaced},
      {"use_beta_sigmas", kFlag, kRespaced},
      {"use_lu_lambdas", kFlag, kDpm},
      {"sigma_min", kNumber, kEuler | kUniPc | kEdm},
      {"sigma_max", kNumber, kEuler | kUniPc | kEdm},
      {"sigma_data", kNumber, kEdm},
      {"sigma_schedule", kText, kEdm},
      {"rho", kNumber, kEdm},
      {"final_sigmas_type", kText, kEuler | kDpm | kSinglestep | kUniPc | kEdm},
      {"interpolation_type", kText, kEuler},
      {"algorithm_type", kText, kDpm | kSinglestep | kDeis | kSaSolver | kEdmDpm},
      {"solver_order", kInteger, kDpmLike | kEdmDpm},
      {"solver_type", kText, kDpmLike | kEdmDpm},
      {"solver_p", kPython, kUniPc},
      {"lower_order_final", kFlag, kWithFlow | kEdmDpm},
      {"euler_at_final", kFlag, kDpm | kEdmDpm},
      {"lambda_min_clipped", kNumber, kDpm | kSinglestep | kSaSolver},
      {"predict_x0", kFlag, kUniPc},
      {"disable_corrector", kIntegers, kUniPc},
      {"predictor_order", kInteger, kSaSolver},
      {"corrector_order", kInteger, kSaSolver},
      {"tau_func", kPython, kSaSolver},
      {"use_flow_sigmas", kFlag, kWithFlow},
      {"flow_shift", kNumber, kWithFlow},
      {"use_dynamic_shifting", kFlag, kDpmLike | kFlowMatch},
      {"time_shift_type", kText, kDpmLike | kFlowMatch},
      {"shift", kNumber, kFlowMatch},
      {"base_shift", kNumber, kFlowMatch},
      {"max_shift", kNumber, kFlowMatch},
      {"shift_terminal", kNumber, kFlowMatch | kUniPc},
      {"base_image_seq_len", kInteger, kFlowMatch},
      {"max_image_seq_len", kInteger, kFlowMatch},
      {"invert_sigmas", kFlag, kFlowMatch},
      {"stochastic_sampling", kFlag, kFlowMatch},
  });
}();

// Reads the value with its type; throws Error(kInput) if it has another one.
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
  const Names known = options_of(class_name);
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

// Lists options of schedulers that are not supported here, and those that older releases wrote.
constexpr std::array<std::string_view, 8> kOtherOptions = {
    "clip_denoised", "noise_sampler_seed", "predict_epsilon", "quantization_config",
    "s_noise",       "snr_shift_scale",    "tensor_format",   "timestep_values",
};

}  // namespace

const std::vector<OptionInfo>& all_options() {
  static const std::vector<OptionInfo> all = [] {
    std::vector<OptionInfo> infos;
    for (const Option& option : kOptions) infos.push_back({std::string(option.name), option.type});
    return infos;
  }();
  return all;
}

std::vector<std::string> options_of(const std::string& class_name) {
  const auto found = std::find(kClasses.begin(), kClasses.end(), class_name);
  Names names;
  for (const Option& option : kOptions) {
    if (found != kClasses.end() && (option.classes >> (found - kClasses.begin()) & 1) != 0)
      names.emplace_back(option.name);
  }
  return names;
}

bool has_option(const std::string& class_name, std::string_view option) {
  const Names names = options_of(class_name);
  return std::find(names.begin(), names.end(), option) != names.end();
}

Json parse_options(const std::vector<std::string>& texts) {
  Json options = Json::object();
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
      usage_error(field("scheduler_option"), "expected KEY=VALUE, such as use_karras_sigmas=true, got '{}'",
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
