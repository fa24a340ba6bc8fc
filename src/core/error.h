// Errors, and the names of fields in their messages. `Error` reports problems caused by users or the
// environment (a request, a file, a peer); `TESSERA_CHECK` guards against bugs. The library throws; only the
// command line prints and exits.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/error.h"

namespace tessera {

// A message refers to a field of the request by its name; the front end that prints the message spells the
// name as its users do: `--height` on a command line, `height` in JSON. The second form is for a flag with
// this value.
std::string field(std::string_view name);
std::string field(std::string_view name, bool value);

// How a front end spells a field; `value` is set for a flag with a value.
using FieldSpelling = std::function<std::string(const std::string& name, std::optional<bool> value)>;

// Returns the message with its fields spelled. By default, fields are spelled as their names, and flags as
// `name: true`.
std::string spell(std::string_view message, const FieldSpelling& spelling);
std::string spell(std::string_view message);

// Returns the names of the fields in a message, each once, in order.
std::vector<std::string> fields_in(std::string_view message);

// A request, or an option of the program, that cannot be served (exit code 2).
template <typename... Args>
[[noreturn]] void usage_error(const std::string& where, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::kUsage, where, fmt::format(format, std::forward<Args>(args)...));
}

// A model or input file that is missing, damaged or of the wrong kind (exit code 3).
template <typename... Args>
[[noreturn]] void input_error(const std::string& where, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::kInput, where, fmt::format(format, std::forward<Args>(args)...));
}

// Throws InternalError.
[[noreturn]] void check_failed(const char* condition, const char* file, int line, const std::string& message);

}  // namespace tessera

#define TESSERA_CHECK(condition, ...)                                                      \
  do {                                                                                     \
    if (!(condition)) [[unlikely]]                                                         \
      ::tessera::check_failed(#condition, __FILE__, __LINE__, ::fmt::format(__VA_ARGS__)); \
  } while (false)
