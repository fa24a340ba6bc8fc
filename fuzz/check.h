// The findings of a fuzzer besides crashes: a broken promise, and an exception that is not a tessera::Error.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "core/error.h"

namespace tessera::fuzz {

inline void require(bool condition, const char* promise) {
  if (condition) return;
  std::fprintf(stderr, "fuzz: broken promise: %s\n", promise);
  std::abort();
}

// Runs `function` and returns whether it accepted its input. It may refuse it as bad input, or, if it
// `has_request`, because the request cannot be carried out with it. Any other exception ends the fuzzer.
template <typename Function>
bool accepts(Function&& function, bool has_request = false) {
  try {
    function();
    return true;
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::kInput || (has_request && error.kind() == ErrorKind::kUsage),
            "bad input is an input error");
    return false;
  }
}

}  // namespace tessera::fuzz
