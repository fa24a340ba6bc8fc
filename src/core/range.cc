#include "core/range.h"

#include <algorithm>
#include <numeric>

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

namespace {

double sum_of(const std::vector<double>& shares) {
  return std::accumulate(shares.begin(), shares.end(), 0.0);
}

}  // namespace

Range split_by_shares(int64_t total, int64_t index, int64_t parts, const Shares& shares) {
  if (shares.of_parts.empty()) return split_evenly(total, index, parts);
  return split_by_shares(total, parts, shares).at(static_cast<size_t>(index));
}

std::vector<Range> split_by_shares(int64_t total, int64_t parts, const Shares& shares) {
  if (shares.of_parts.empty()) return split_evenly(total, parts);
  TESSERA_CHECK(std::ssize(shares.of_parts) == parts && total >= 0, "{} shares for {} parts of {}",
                shares.of_parts.size(), parts, total);
  const int64_t least = std::min(shares.least, total / parts);
  const double unit = static_cast<double>(total) / sum_of(shares.of_parts);
  std::vector<Range> all;
  std::vector<double> missing;  // how much a part falls short of its share
  int64_t left = total;
  for (const double share : shares.of_parts) {
    const double exact = unit * share;
    all.push_back({0, std::max(static_cast<int64_t>(exact), least)});
    missing.push_back(exact - static_cast<double>(all.back().length));
    left -= all.back().length;
  }
  // The minimum lengths may exceed the total; the parts with the largest excess then give some back.
  for (; left != 0; left += left > 0 ? -1 : 1) {
    const int64_t change = left > 0 ? 1 : -1;
    size_t chosen = all.size();
    for (size_t i = 0; i < all.size(); ++i) {
      if (change < 0 && all[i].length == least) continue;
      if (chosen == all.size() || (change > 0 ? missing[i] > missing[chosen] : missing[i] <= missing[chosen]))
        chosen = i;
    }
    all[chosen].length += change;
    missing[chosen] -= static_cast<double>(change);
  }
  for (size_t i = 1; i < all.size(); ++i) all[i].begin = all[i - 1].end();
  return all;
}

int64_t things_of_round(int64_t parts, const Shares& shares) {
  if (shares.of_parts.empty()) return parts;
  constexpr double kGoodEnough = 0.95;
  // Returns the fraction of the parts' time that is used until the last one is done.
  const auto used = [&](int64_t things) {
    double longest = 0;
    const std::vector<Range> ranges = split_by_shares(things, parts, shares);
    for (size_t i = 0; i < ranges.size(); ++i)
      longest = std::max(longest, static_cast<double>(ranges[i].length) / shares.of_parts[i]);
    return static_cast<double>(things) / (longest * sum_of(shares.of_parts));
  };
  double best = 0;
  for (int64_t things = parts; things <= 4 * parts; ++things) best = std::max(best, used(things));
  int64_t fewest = parts;
  while (used(fewest) < kGoodEnough * best) ++fewest;
  return fewest;
}

}  // namespace tessera
