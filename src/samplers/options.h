// The options of a scheduler_config.json: checks which are known, reads those with a choice of words, and
// refuses unsupported ones.
#pragma once

#include <initializer_list>
#include <string>

#include "core/json.h"

namespace tessera::samplers {

// Warns in one line of options that no scheduler of diffusers has, which diffusers ignores as well. Options
// of other classes pass without a warning, as diffusers ignores them when it loads one scheduler from the
// file of another; each sampler refuses those of its own options that it does not support.
void warn_of_unknown_options(const JsonConfig& config);

// Returns `config` as StableDiffusionPipeline and its variants (except XL) run it. Their first checkpoints
// lacked steps_offset = 1 and clip_sample = false, so diffusers sets both whatever the file says.
JsonConfig with_stable_diffusion_options(const JsonConfig& config);
// Returns the options of such a config that another class takes, as
// CLASS.from_config(pipeline.scheduler.config) does in diffusers: options that the file lacks are left to the
// class.
Json without_pipeline_defaults(const JsonConfig& config);

// Returns the value of `key`, which must be one of `allowed`, or `fallback` if it is absent. Throws
// Error(kInput) that lists the allowed values.
std::string read_choice(const JsonConfig& config, const std::string& key, const std::string& fallback,
                        std::initializer_list<std::string> allowed);

// Throws Error(kInput) if `key` is set to anything but null or false, because it would change the result.
void refuse_option(const JsonConfig& config, const std::string& key);

// The quantity that the model predicts, in the order of the names of `prediction_type`.
enum class Prediction { kEpsilon, kSample, kVelocity, kFlow };

// Reads `prediction_type`, "epsilon" by default. Throws Error(kInput) if it is not in `allowed`.
Prediction read_prediction(const JsonConfig& config, std::initializer_list<Prediction> allowed);
// Allows every prediction, but that of flow matching only with `flow`.
Prediction read_prediction(const JsonConfig& config, bool flow);

}  // namespace tessera::samplers
