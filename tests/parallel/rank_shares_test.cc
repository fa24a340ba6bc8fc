// Tests what the shares of ranks make of a layout.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "tests/support/degrees.h"

namespace tessera::parallel {
namespace {

constexpr Workload kSharedPixArt{.heads = 16, .blocks = 28, .token_rows = 32, .steps = 20, .pictures = 2};

// 16 rows of the coarsest scale.
constexpr Workload kSharedUNet{
    .heads = 5, .blocks = 7, .token_rows = 64, .row_unit = 4, .has_streams = false, .has_group_norms = true};

// The least possible largest quotient of work and share, by trying every division.
double least_busy(const Workload& workload, const std::vector<double>& shares, size_t stage, int64_t left) {
  const auto busy = [&](int64_t blocks) {
    const double others =
        (stage == 0 ? workload.embedding : 0) + (stage + 1 == shares.size() ? workload.head : 0);
    return (static_cast<double>(blocks) + others) / shares[stage];
  };
  if (stage + 1 == shares.size()) return busy(left);
  double least = std::numeric_limits<double>::infinity();
  for (int64_t blocks = 1; blocks < left; ++blocks)
    least = std::min(least, std::max(busy(blocks), least_busy(workload, shares, stage + 1, left - blocks)));
  return least;
}

TEST(RankShares, StagesOfUnequalRanksAreAsBusyAsCanBe) {
  EXPECT_EQ(balanced_stages({.blocks = 28}, 2, {{3, 2}}), (std::vector<int64_t>{17, 11}));
  EXPECT_EQ(balanced_stages({.blocks = 28}, 4, {{1, 1, 1, 7}}), (std::vector<int64_t>{3, 3, 2, 20}));
  EXPECT_EQ(balanced_stages({.blocks = 4}, 3, {{1, 100, 1}}), (std::vector<int64_t>{1, 2, 1}));
  EXPECT_EQ(balanced_stages({.blocks = int64_t{1} << 40}, 2, {{3, 1}}),
            (std::vector<int64_t>{int64_t{3} << 38, int64_t{1} << 38}));
  for (const std::vector<double>& shares :
       {std::vector<double>{1, 1}, {1, 5}, {2.5, 1, 1}, {1, 1, 1, 7}, {0.3, 0.7, 0.2}, {1, 1, 1, 1}}) {
    for (const auto& [embedding, head] : {std::pair(0.0, 0.0), {0.1, 0.2}, {2.5, 0.0}, {0.4, 9.0}}) {
      for (const int64_t blocks : {4, 5, 9, 14}) {
        const Workload workload{.blocks = blocks, .embedding = embedding, .head = head};
        const std::vector<int64_t> stages = balanced_stages(workload, std::ssize(shares), {shares});
        double busiest = 0;
        int64_t dealt = 0;
        for (size_t i = 0; i < stages.size(); ++i) {
          const double others = (i == 0 ? embedding : 0) + (i + 1 == stages.size() ? head : 0);
          busiest = std::max(busiest, (static_cast<double>(stages[i]) + others) / shares[i]);
          EXPECT_GE(stages[i], 1);
          dealt += stages[i];
        }
        EXPECT_EQ(dealt, blocks);
        EXPECT_DOUBLE_EQ(busiest, least_busy(workload, shares, 0, blocks));
      }
    }
  }
}

// Ranks 0 to 3 are a ring of pairs: the sums of columns are Ulysses' shares, those of rows the ring's.
TEST(RankShares, AddsTheSharesOfRanksWithTheSameCoordinate) {
  ParallelOptions options = degrees(1, false, 1, 2, 2, 1);
  options.rank_shares = {1, 2, 4, 8};
  const auto shares_of = [&](std::span<const Axis> axes) {
    std::vector<double> shares = resolve_layout(options, kSharedPixArt, std::nullopt).shares(axes).of_parts;
    for (double& share : shares) share *= 8;  // of the largest rank
    return shares;
  };
  constexpr std::array kUlysses = {Axis::kUlysses}, kRing = {Axis::kRing}, kData = {Axis::kData};
  EXPECT_EQ(shares_of(kUlysses), (std::vector<double>{5, 10}));
  EXPECT_EQ(shares_of(kRing), (std::vector<double>{3, 12}));
  EXPECT_EQ(shares_of(kSequenceAxes), options.rank_shares);
  EXPECT_EQ(shares_of(kAllAxes), options.rank_shares);
  EXPECT_EQ(shares_of(kData), (std::vector<double>{15}));
  options.rank_shares = {7, 7, 7, 7};
  EXPECT_TRUE(resolve_layout(options, kSharedPixArt, std::nullopt).rank_shares.empty())
      << "equal ones are none";
  EXPECT_TRUE(shares_of(kSequenceAxes).empty());
}

// Three Ulysses ranks divide the heads of each tensor rank, so that none has fewer than three.
TEST(RankShares, LeavesHeadsForTheMethodsThatDivideThemFurther) {
  ParallelOptions options = degrees(1, false, 1, 1, 3, 2);
  options.rank_shares = {1, 9, 1, 9, 1, 9};
  const Layout layout = resolve_layout(options, kSharedPixArt, std::nullopt);
  constexpr std::array kInner = {Axis::kTensorInner};
  EXPECT_EQ(split_by_shares(16, 2, layout.shares(kInner)), (std::vector<Range>{{0, 3}, {3, 13}}));
}

TEST(RankShares, KnowsTheFewestRowsOfUnequalRanks) {
  ParallelOptions options;
  options.displaced_patch_degree = 2;
  EXPECT_FALSE(resolve_layout(options, kSharedUNet, std::nullopt).displaced_mode_was_changed);
  options.rank_shares = {1, 7};  // 2 and 14 rows
  EXPECT_TRUE(resolve_layout(options, kSharedUNet, std::nullopt).displaced_mode_was_changed);
}

}  // namespace
}  // namespace tessera::parallel
