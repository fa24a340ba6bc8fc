#include "core/range.h"

#include <algorithm>

#include "core/error.h"

namespace tessera {

Range overlap(const Range& a, const Range& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max<int64_t>(std::min(a.end(), b.end()) - begin, 0)};
}

Range times(const Range& range, int64_t unit) {
  return {range.begin * unit, range.length * unit};
}

std::vector<Range> times(std::vector<Range> ranges, int64_t unit) {
  for (Range& range : ranges) range = times(range, unit);
  return ranges;
}

Range split_evenly(int64_t total, int64_t index, int64_t parts) {
  TESSERA_CHECK(parts >= 1 && index >= 0 && index < parts, "part {} of {}", index, parts);
  TESSERA_CHECK(total >= 0, "{} items", total);
  const int64_t base = total / parts, larger = total % parts;
  return {.begin = index * base + std::min(index, larger), .length = base + (index < larger ? 1 : 0)};
}

std::vector<Range> split_evenly(int64_t total, int64_t parts) {
  std::vector<Range> all;
  for (int64_t index = 0; index < parts; ++index) all.push_back(split_evenly(total, index, parts));
  return all;
}

}  // namespace tessera
