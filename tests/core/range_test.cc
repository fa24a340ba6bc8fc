#include "core/range.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace tessera
