// Errors. `Error` reports what users or the environment cause (a request, a file, a peer); `TESSERA_CHECK`
// guards against bugs. The library throws; only the command line prints and exits.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "core/field_name.h"
#include "tessera/error.h"

namespace tessera {

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
