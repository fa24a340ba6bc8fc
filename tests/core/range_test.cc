#include "core/range.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tessera {
namespace {

TEST(Overlap, IsWhatBothHave) {
  EXPECT_EQ(overlap({0, 4}, {2, 5}), (Range{2, 2}));
  EXPECT_EQ(overlap({2, 5}, {0, 4}), (Range{2, 2}));
  EXPECT_EQ(overlap({-3, 10}, {1, 2}), (Range{1, 2}));
  EXPECT_EQ(overlap({0, 2}, {2, 3}).length, 0);
  EXPECT_EQ(overlap({5, 2}, {0, 3}).length, 0);
}

TEST(SplitEvenly, GivesLargerPartsFirst) {
  const std::vector<int64_t> expected = {8, 8, 7, 7};
  int64_t begin = 0;
  for (int64_t rank = 0; rank < 4; ++rank) {
    const Range range = split_evenly(30, rank, 4);
    EXPECT_EQ(range, (Range{begin, expected[rank]}));
    begin = range.end();
  }
}

TEST(SplitEvenly, CoversEverythingOnce) {
  for (int64_t total : {0, 1, 5, 28, 31}) {
    for (int64_t size = 1; size <= 9; ++size) {
      int64_t next = 0;
      for (int64_t rank = 0; rank < size; ++rank) {
        const Range range = split_evenly(total, rank, size);
        EXPECT_EQ(range.begin, next);
        next = range.end();
      }
      EXPECT_EQ(next, total);
    }
  }
}

std::vector<int64_t> lengths_of(int64_t total, const Shares& shares) {
  std::vector<int64_t> lengths;
  for (const Range& range : split_by_shares(total, std::ssize(shares.of_parts), shares))
    lengths.push_back(range.length);
  return lengths;
}

TEST(SplitByShares, RoundsByLargestRemainder) {
  using Lengths = std::vector<int64_t>;
  EXPECT_EQ(lengths_of(5, {{3, 2}}), (Lengths{3, 2}));
  EXPECT_EQ(lengths_of(13, {{3, 2}}), (Lengths{8, 5}));  // 7.8, 5.2
  EXPECT_EQ(lengths_of(9, {{2.5, 1, 1}}), (Lengths{5, 2, 2}));
  EXPECT_EQ(lengths_of(11, {{2.5, 1, 1}}), (Lengths{6, 3, 2}));  // 6.1, 2.4, 2.4
  EXPECT_EQ(lengths_of(2, {{1, 1, 1, 7}}), (Lengths{0, 0, 0, 2}));
}

TEST(SplitByShares, GivesEachPartTheLeastWhereThereIsEnough) {
  using Lengths = std::vector<int64_t>;
  EXPECT_EQ(lengths_of(5, {{1, 1, 1, 7}}), (Lengths{1, 1, 1, 2}));
  EXPECT_EQ(lengths_of(4, {{1, 1e9, 1, 1e-9}}), (Lengths{1, 1, 1, 1}));
  EXPECT_EQ(lengths_of(9, {{1, 9}, 4}), (Lengths{4, 5}));
  EXPECT_EQ(lengths_of(7, {{1, 9}, 4}), (Lengths{3, 4})) << "not enough for all";
  EXPECT_EQ(lengths_of(6, {{1, 2, 9}, 2}), (Lengths{2, 2, 2}));
}

TEST(SplitByShares, CoversEverythingOnceAndNearlyByShare) {
  uint32_t seed = 1;
  const auto drawn = [&] {
    return static_cast<double>((seed = seed * 1664525 + 1013904223) >> 20) / 256 + 0.1;
  };
  for (int64_t total : {0, 1, 5, 28, 31, 1000}) {
    for (int64_t size = 1; size <= 9; ++size) {
      Shares shares;
      double sum = 0;
      for (int64_t i = 0; i < size; ++i) sum += shares.of_parts.emplace_back(drawn());
      const std::vector<Range> ranges = split_by_shares(total, size, shares);
      int64_t next = 0;
      for (int64_t i = 0; i < size; ++i) {
        const Range& range = ranges[static_cast<size_t>(i)];
        EXPECT_EQ(range, split_by_shares(total, i, size, shares));
        EXPECT_EQ(range.begin, next);
        next = range.end();
        const double exact = static_cast<double>(total) * shares.of_parts[static_cast<size_t>(i)] / sum;
        EXPECT_GE(range.length, total >= size ? 1 : 0);
        EXPECT_LE(static_cast<double>(range.length), std::max(exact, 1.0) + 1);
      }
      EXPECT_EQ(next, total);
    }
  }
}

TEST(SplitByShares, OfEqualOnesIsEven) {
  for (int64_t total : {0, 1, 5, 28, 31}) {
    for (int64_t size = 1; size <= 9; ++size) {
      const std::vector<double> equal(static_cast<size_t>(size), 0.1);
      EXPECT_EQ(split_by_shares(total, size, {}), split_evenly(total, size));
      EXPECT_EQ(split_by_shares(total, size, {equal}), split_evenly(total, size)) << total << " in " << size;
    }
  }
}

TEST(ThingsOfRound, KeepNoPartWaitingForLong) {
  EXPECT_EQ(things_of_round(3, {}), 3);
  EXPECT_EQ(things_of_round(2, {{2, 1}}), 3);
  EXPECT_EQ(things_of_round(2, {{3, 2}}), 5);
  EXPECT_EQ(things_of_round(2, {{1.04, 1}}), 2) << "near enough";
  EXPECT_EQ(things_of_round(3, {{2.5, 1, 1}}), 9);
  EXPECT_EQ(things_of_round(4, {{1, 1, 1, 7}}), 10);
  EXPECT_EQ(things_of_round(2, {{1, 1000}}), 8) << "no more than four for each part";
}

}  // namespace
}  // namespace tessera
