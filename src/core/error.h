// Errors. `Error` is what users or the world cause (a flag, a file, a peer); `TESSERA_CHECK` guards against
// our own mistakes. The library throws; only the command line prints and exits.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace tessera {

// The values are the exit codes of the program.
enum class ErrorKind { kUsage = 2, kInput = 3, kPeer = 4, kMemory = 5 };

// One line: `[where] what is wrong, and what to do`.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& where, const std::string& what)
      : std::runtime_error(fmt::format("[{}] {}", where, what)), kind_(kind) {}

  ErrorKind kind() const { return kind_; }
  int exit_code() const { return static_cast<int>(kind_); }

 private:
  ErrorKind kind_;
};

// A flag or a request that cannot be served (exit code 2).
template <typename... Args>
[[noreturn]] void usage_error(const std::string& where, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::kUsage, where, fmt::format(format, std::forward<Args>(args)...));
}

// A model or input file that is missing, damaged or of another kind (exit code 3).
template <typename... Args>
[[noreturn]] void input_error(const std::string& where, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::kInput, where, fmt::format(format, std::forward<Args>(args)...));
}

// Thrown by TESSERA_CHECK: a broken promise inside the library.
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
