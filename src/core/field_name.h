// Names of request fields in messages. Code that writes a message names the field; the front end that prints
// it spells the name as its users do: `--height` on a command line, `height` in JSON.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Marks a field in a message by its JSON name; the second form is for a flag with this value.
std::string field(std::string_view name);
std::string field(std::string_view name, bool value);

// How a front end spells a field; `value` is set for a flag with a value.
using FieldSpelling = std::function<std::string(const std::string& name, std::optional<bool> value)>;

// Returns the message with its fields spelled. By default they are spelled as their names, flags as `name:
// true`.
std::string spell(std::string_view message, const FieldSpelling& spelling);
std::string spell(std::string_view message);

// Returns the names of the fields in a message, each once, in order.
std::vector<std::string> fields_in(std::string_view message);

}  // namespace tessera
