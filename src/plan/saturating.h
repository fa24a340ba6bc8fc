// Sums and products of numbers from a file: they saturate at the largest number instead of wrapping.
#pragma once

#include <cstdint>
#include <limits>

namespace tessera::plan {

inline int64_t sum(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_add_overflow(a, b, &result) ? std::numeric_limits<int64_t>::max() : result;
}
inline int64_t product(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? std::numeric_limits<int64_t>::max() : result;
}

}  // namespace tessera::plan
