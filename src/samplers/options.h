// Reading the options of a scheduler_config.json that are words, and refusing those that cannot be honoured.
#pragma once

#include <initializer_list>
#include <string>

#include "core/json.h"

namespace tessera::samplers {

// The value of `key`, which must be one of `allowed`; `fallback` when absent. Throws Error(kInput) that lists
// them.
std::string read_choice(const JsonConfig& config, const std::string& key, const std::string& fallback,
                        std::initializer_list<std::string> allowed);

// Throws Error(kInput) when `key` is set to anything but null or false: it would change the result.
void refuse_option(const JsonConfig& config, const std::string& key);

// What the model predicts, under the names of `prediction_type`.
enum class Prediction { kEpsilon, kSample, kVelocity, kFlow };

// `prediction_type`, "epsilon" by default. Throws Error(kInput) for one that is not in `allowed`.
Prediction read_prediction(const JsonConfig& config, std::initializer_list<Prediction> allowed);
// Any prediction; that of flow matching only with `flow`.
Prediction read_prediction(const JsonConfig& config, bool flow);

}  // namespace tessera::samplers
