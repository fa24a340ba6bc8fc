// The options of each scheduler class of diffusers, which are the parameters of its constructor, and options
// that a request gives, as CLASS.from_config(config, key=value) takes them.
#pragma once

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

// Whether some class has the option.
bool is_option(const std::string& name);

// The names of the options of a class; none of an unknown class.
const std::vector<std::string>& options_of(const std::string& class_name);
bool has_option(const std::string& class_name, std::string_view option);

// Reads texts "KEY=VALUE" into an object. VALUE is JSON, or a bare word, which is a text. Throws
// Error(kUsage) for another form and for a key that is given twice.
Json parse_options(const std::vector<std::string>& texts);

// Throws Error(kUsage) for an option that the class lacks, which it then lists, and for a value of another
// type. Null is Python's None, and what reads the option judges it.
void check_options(const std::string& class_name, const Json& options);

// Throws what an Error about `where` says, as an Error(kUsage) about the options of the request.
[[noreturn]] void blame_options(const Error& error, const std::string& where);

}  // namespace tessera::samplers
