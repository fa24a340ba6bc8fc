// How a run failed: the exit code and the line that says so.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/field_name.h"

namespace tessera::launch {

struct Failure {
  int exit_code = 0;
  std::string message;                         // without the program's name; fields for spell()
  std::optional<int64_t> peer = std::nullopt;  // the rank that is to blame, where this one knows
};

inline constexpr int kInternalError = 1;
inline constexpr int kInterrupted = 130;  // 128 + SIGINT

// `code` where it is one that this program ends with when it fails, else kInternalError: for what another
// process has said.
int known_exit_code(int64_t code);

// What the exception in flight means. To be called in a catch block.
Failure current_failure();

// Prints the line on stderr, fields as `spelling` says, without control characters whatever the message
// holds; returns the exit code.
int print_failure(const Failure& failure, const FieldSpelling& spelling);

}  // namespace tessera::launch
