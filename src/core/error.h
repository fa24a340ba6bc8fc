// Errors. `Error` reports what users or the environment cause (a request, a file, a peer); `TESSERA_CHECK`
// guards against bugs. The library throws; only the command line prints and exits.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "core/field_name.h"

namespace tessera {

// The values are the exit codes of the program.
enum class ErrorKind { kUsage = 2, kInput = 3, kPeer = 4, kMemory = 5 };

// One line: `[where] what is wrong, and what to do`. Both parts may name fields of the request by field().
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& where, const std::string& what)
      : Error(kind, fmt::format("[{}] {}", where, what)) {}

  ErrorKind kind() const { return kind_; }
  int exit_code() const { return static_cast<int>(kind_); }
  // The message for spell() and fields_in(), with marked fields; what() has the fields' plain names.
  const std::string& message() const { return message_; }

 private:
  Error(ErrorKind kind, std::string message)
      : std::runtime_error(spell(message)), kind_(kind), message_(std::move(message)) {}

  ErrorKind kind_;
  std::string message_;
};

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

// Thrown by TESSERA_CHECK: a broken invariant inside the library.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void check_failed(const char* condition, const char* file, int line, const std::string& message);

}  // namespace tessera

#define TESSERA_CHECK(condition, ...)                                                      \
  do {                                                                                     \
    if (!(condition)) [[unlikely]]                                                         \
      ::tessera::check_failed(#condition, __FILE__, __LINE__, ::fmt::format(__VA_ARGS__)); \
  } while (false)
