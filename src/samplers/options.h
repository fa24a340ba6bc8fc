// The options of a scheduler_config.json: which there are, reading those that are words, and refusing what
// cannot be honoured.
#pragma once

#include <initializer_list>
#include <string>

#include "core/json.h"

namespace tessera::samplers {

// Throws Error(kInput) for an option that no scheduler of diffusers has: it may mean anything. Those of other
// classes pass, as diffusers ignores them when it makes one scheduler from the file of another; what a
// sampler cannot serve of its own, it refuses itself.
void check_options(const JsonConfig& config);

// `config` as StableDiffusionPipeline and its kin (not those of XL) run it: their first checkpoints had files
// without steps_offset = 1 and clip_sample = false, so diffusers sets both whatever the file says.
JsonConfig with_stable_diffusion_options(const JsonConfig& config);

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
