// The options of the scheduler classes of diffusers, which are the parameters of their constructors: which
// each class has, those of a scheduler_config.json, and those that a request gives, as
// CLASS.from_config(config, key=value) takes them.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/json.h"

namespace tessera::samplers {

// The type of an option's value; kPython is an object or a function of Python, which no JSON holds.
enum class OptionType { kFlag, kInteger, kNumber, kText, kIntegers, kNumbers, kPython };

struct OptionInfo {
  std::string name;
  OptionType type;
};

// All options of the classes that run here; an option has one type, whichever class has it.
const std::vector<OptionInfo>& all_options();

// The names of the options of a class; none of an unknown class.
std::vector<std::string> options_of(const std::string& class_name);
bool has_option(const std::string& class_name, std::string_view option);

// Reads texts "KEY=VALUE" into an object. VALUE is JSON, or a bare word, which is a text. Throws
// Error(kUsage) for another form and for a key that is given twice.
Json parse_options(const std::vector<std::string>& texts);

// Throws Error(kUsage) for an option that the class lacks, which it then lists, and for a value of another
// type. Null is Python's None, and what reads the option judges it.
void check_options(const std::string& class_name, const Json& options);

// Throws what an Error about `where` says, as an Error(kUsage) about the options of the request.
[[noreturn]] void blame_options(const Error& error, const std::string& where);

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

// Refuses a `variance_type` that the model has learned.
void refuse_learned_variance(const JsonConfig& config);

// The quantity that the model predicts, in the order of the names of `prediction_type`.
enum class Prediction { kEpsilon, kSample, kVelocity, kFlow };

// Reads `prediction_type`, "epsilon" by default. Throws Error(kInput) if it is not in `allowed`.
Prediction read_prediction(const JsonConfig& config, std::initializer_list<Prediction> allowed);
// Allows every prediction, but that of flow matching only with `flow`.
Prediction read_prediction(const JsonConfig& config, bool flow);

}  // namespace tessera::samplers
