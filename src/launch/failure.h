// Describes how a run failed: the exit code and the line to print.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/error.h"

namespace tessera::launch {

struct Failure {
  int exit_code = 0;
  std::string message;                         // without the program's name; fields are marked for spell()
  std::optional<int64_t> peer = std::nullopt;  // the rank to blame, if this rank knows it
};

inline constexpr int kInternalError = 1;
inline constexpr int kInterrupted = 130;  // 128 + SIGINT

// Returns `code` if it is one of this program's exit codes for failures, else kInternalError. Use it for
// codes that another process reports.
int known_exit_code(int64_t code);

// Describes the current exception. Must be called in a catch block.
Failure current_failure();

// Prints the line on stderr, with fields spelled by `spelling` and with control characters replaced by
// spaces; returns the exit code.
int print_failure(const Failure& failure, const FieldSpelling& spelling);

}  // namespace tessera::launch
