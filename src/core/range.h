// Contiguous parts of a sequence: rows, heads, blocks, columns of a weight.
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

// The intersection of two ranges; its length is 0 if they do not overlap.
Range overlap(const Range& a, const Range& b);

// Scales ranges by `unit`, from units (such as heads) to their features.
Range times(const Range& range, int64_t unit);
std::vector<Range> times(std::vector<Range> ranges, int64_t unit);

// Part `index` of `total` things split into `parts` parts that differ by at most one, larger parts first (30
// in 4: 8, 8, 7, 7). If there are more parts than things, the last parts are empty.
Range split_evenly(int64_t total, int64_t index, int64_t parts);
// Returns all parts.
std::vector<Range> split_evenly(int64_t total, int64_t parts);

// The sizes of the parts of a whole relative to each other.
struct Shares {
  std::vector<double> of_parts{};  // positive, one for each part; empty if all are equal
  int64_t least = 1;               // what each part gets as long as there is enough for all

  bool operator==(const Shares&) const = default;
};

// Splits `total` things into `parts` parts by their shares, rounded by largest remainder; among equal
// remainders, the first part gets more. Equal shares split as in split_evenly().
Range split_by_shares(int64_t total, int64_t index, int64_t parts, const Shares& shares);
// Returns all parts.
std::vector<Range> split_by_shares(int64_t total, int64_t parts, const Shares& shares);

// The smallest number of things, at most four for each part, that parts of unequal speeds should get at a
// time so that none waits long for the others: 3 for shares of 2 and 1, 5 for 3 and 2, `parts` for equal
// ones.
int64_t things_of_round(int64_t parts, const Shares& shares);

}  // namespace tessera
