// Parts of a sequence of things: rows, heads, blocks, columns of a weight.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

// A contiguous part of [0, total).
struct Range {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t end() const { return begin + length; }
  bool operator==(const Range&) const = default;
};

// What two ranges have in common; of length 0 where that is nothing.
Range overlap(const Range& a, const Range& b);

// Each range made `unit` times as large: of units to their features.
Range times(const Range& range, int64_t unit);
std::vector<Range> times(std::vector<Range> ranges, int64_t unit);

// Part `index` of `total` things in `parts` parts that differ by at most one, larger parts first (30 in 4: 8,
// 8, 7, 7). With more parts than things the last ones are empty.
Range split_evenly(int64_t total, int64_t index, int64_t parts);
// All parts.
std::vector<Range> split_evenly(int64_t total, int64_t parts);

}  // namespace tessera
