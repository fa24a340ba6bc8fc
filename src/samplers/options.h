// The options of diffusers' scheduler classes, which are the parameters of their constructors: the options of
// each class, those of a scheduler_config.json, and those of a request, as CLASS.from_config(config,
// key=value) would take them.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/json.h"

namespace tessera::samplers {

// The type of an option's value; kPython is an object or a function in Python, which JSON cannot hold.
enum class OptionType { kFlag, kInteger, kNumber, kText, kIntegers, kNumbers, kPython };

struct OptionInfo {
  std::string name;
  OptionType type;
};

// All options of the supported classes; an option has the same type in every class.
const std::vector<OptionInfo>& all_options();

// The names of the options of a class; empty for an unknown class.
std::vector<std::string> options_of(const std::string& class_name);
bool has_option(const std::string& class_name, std::string_view option);

// Reads texts "KEY=VALUE" into an object. VALUE is JSON, or a bare word, which is a text. Throws
// Error(kUsage) for any other form, and for a key that is given twice.
Json parse_options(const std::vector<std::string>& texts);

// Throws Error(kUsage) for an option that the class lacks, listing those it has, and for a value of another
// type. Null is Python's None; whatever reads the option decides whether it is valid.
void check_options(const std::string& class_name, const Json& options);

// Rethrows an Error about `where` as an Error(kUsage) about the options of the request.
[[noreturn]] void blame_options(const Error& error, const std::string& where);

// Warns in one line about options that no scheduler of diffusers has; diffusers ignores them too. Options of
// other classes pass without a warning, because diffusers ignores them when it loads a scheduler from the
// file of another; each sampler refuses those of its own options that it does not support.
void warn_of_unknown_options(const JsonConfig& config);

// Returns `config` as used by StableDiffusionPipeline and its variants (except XL). Their first checkpoints
// lacked steps_offset = 1 and clip_sample = false, so diffusers sets both, whatever the file contains.
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

// Refuses a `variance_type` for variances that the model has learned.
void refuse_learned_variance(const JsonConfig& config);

// The quantity that the model predicts, in the order of the names of `prediction_type`.
enum class Prediction { kEpsilon, kSample, kVelocity, kFlow };

// Reads `prediction_type`, "epsilon" by default. Throws Error(kInput) if it is not in `allowed`.
Prediction read_prediction(const JsonConfig& config, std::initializer_list<Prediction> allowed);
// Allows every prediction; that of flow matching only if `flow`.
Prediction read_prediction(const JsonConfig& config, bool flow);

}  // namespace tessera::samplers
