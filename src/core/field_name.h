// Fields of a request in messages. Whoever writes a message names the field; the front end that tells it
// spells the name as its users do: `--height` on a command line, `height` in JSON.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// What stands in a message for a field, by its name in JSON; for a flag with this value.
std::string field(std::string_view name);
std::string field(std::string_view name, bool value);

// How a front end spells a field; `value` is there where a flag has one.
using FieldSpelling = std::function<std::string(const std::string& name, std::optional<bool> value)>;

// The message with its fields spelled: by default by their names, flags as `name: true`.
std::string spell(std::string_view message, const FieldSpelling& spelling);
std::string spell(std::string_view message);

// The names of the fields in a message, each once, in their order.
std::vector<std::string> fields_in(std::string_view message);

}  // namespace tessera
