// Integers that never wrap: closed forms for large sizes soon leave int64_t, and a wrong number is worse than
// none.
#pragma once

#include <cstdint>

#include "core/error.h"

namespace tessera::plan {

// Results are at least 0. Throws Error(kUsage) if one exceeds int64_t.
class Amount {
 public:
  Amount(int64_t value) : value_(value) {}  // implicit: formulas contain numbers

  int64_t value() const { return value_; }

  friend Amount operator+(Amount a, Amount b) {
    int64_t sum = 0;
    if (__builtin_add_overflow(a.value_, b.value_, &sum)) refuse();
    return sum;
  }
  friend Amount operator*(Amount a, Amount b) {
    int64_t product = 0;
    if (__builtin_mul_overflow(a.value_, b.value_, &product)) refuse();
    return product;
  }
  friend Amount operator-(Amount a, Amount b) { return a.value_ - b.value_; }
  // The division must be exact.
  friend Amount operator/(Amount a, Amount b) {
    TESSERA_CHECK(b.value_ > 0 && a.value_ % b.value_ == 0, "{} is not divisible by {}", a.value_, b.value_);
    return a.value_ / b.value_;
  }
  // The largest part if n is divided as evenly as possible.
  friend Amount largest_part(Amount a, Amount n) {
    return a.value_ / n.value_ + (a.value_ % n.value_ == 0 ? 0 : 1);
  }
  // a * own / all, rounded up, for own <= all.
  friend Amount fraction(Amount a, Amount own, Amount all) {
    __extension__ using Wide = __int128;
    const Wide product = Wide(a.value_) * own.value_;
    return static_cast<int64_t>(product / all.value_ + (product % all.value_ == 0 ? 0 : 1));
  }

 private:
  [[noreturn]] static void refuse() {
    usage_error("sizes", "too large: a result exceeds 9.2e18; give smaller sizes");
  }

  int64_t value_;
};

}  // namespace tessera::plan
