// How a run failed: the exit code and the line that says so.
#pragma once

#include <string>

namespace tessera::launch {

struct Failure {
  int exit_code = 0;
  std::string message;  // without the program's name
};

inline constexpr int kInternalError = 1;
inline constexpr int kInterrupted = 130;  // 128 + SIGINT

// What the exception in flight means. To be called in a catch block.
Failure current_failure();

// Prints the line on stderr, without control characters whatever the message holds; returns the exit code.
int tell(const Failure& failure);

}  // namespace tessera::launch
