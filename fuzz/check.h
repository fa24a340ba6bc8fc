// What a fuzzer calls a finding beside a crash: a broken promise, and an exception that is no tessera::Error.
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

// Runs `function`; true when it returned, false when it refused its input, as bad or, where it `has_request`,
// as something on which the request cannot be carried out. Any other exception ends the fuzzer.
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
