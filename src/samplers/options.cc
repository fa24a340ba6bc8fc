#include "samplers/options.h"

#include <algorithm>
#include <array>

#include "core/error.h"

namespace tessera::samplers {
namespace {

const std::array<std::string, 4> kPredictionNames = {"epsilon", "sample", "v_prediction", "flow_prediction"};

}  // namespace

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
