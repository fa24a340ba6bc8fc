// Tests what ranks send each other for the next step, with numbers in place of a network.
#include "parallel/displaced.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <numeric>

#include "parallel/halo.h"
#include "parallel/moments.h"
#include "tests/support/golden.h"
#include "tests/support/rank_threads.h"

namespace tessera::parallel {
namespace {

constexpr int64_t kSteps = 5, kPlaces = 130;  // more than fit into one message

// Returns a rank's value at a place in a step.
double value_of(int64_t rank, int64_t step, int64_t place) {
  return static_cast<double>(1 + place + 1000 * step + 100000 * rank);
}

struct Case {
  int64_t ranks;
  DisplacedMode mode;
  int64_t warmup;
};

class DisplacedExchangeTest : public ::testing::TestWithParam<Case> {
 protected:
  // Places have several sizes and dtypes; one is alone in its message, and another is always fresh.
  static Travel travel_of(int64_t place) {
    return place == 7 ? Travel::kAlone : place == 20 ? Travel::kFresh : Travel::kTogether;
  }
  static DisplacedExchange::Transfers parts_of(int64_t place, const comm::Group& group) {
    DisplacedExchange::Transfers parts{.travel = travel_of(place)};
    const auto options = at::TensorOptions(place % 2 == 0 ? at::kFloat : at::kDouble);
    for (int64_t peer = 0; peer < group.size; ++peer) {
      // Every third place only sends to its neighbours.
      const bool travels = peer != group.rank && (place % 3 != 0 || std::abs(peer - group.rank) == 1);
      const std::vector<int64_t> shape = {travels ? 1 + place % 5 : 0};
      parts.sends.push_back(at::empty(shape, options));
      parts.receives.push_back(peer == group.rank ? parts.sends.back() : at::full(shape, -1, options));
    }
    return parts;
  }
};

TEST_P(DisplacedExchangeTest, GivesWhatOthersHadOneStepAgo) {
  const auto [ranks, mode, warmup] = GetParam();
  comm::run_ranks_as_threads(ranks, [&, mode = mode, warmup = warmup](comm::World world) {
    std::vector<int64_t> all(static_cast<size_t>(world.size()));
    std::iota(all.begin(), all.end(), 0);
    const comm::Group group = world.group(all, "displaced");
    comm::connect(group, at::kCPU);
    DisplacedExchange exchange(group, {mode, warmup});
    for (int64_t step = 0; step < kSteps; ++step) {
      exchange.begin(step, kSteps);
      const bool synchronous = mode == DisplacedMode::kFullSync || step < warmup;
      EXPECT_EQ(exchange.is_synchronous(), synchronous);
      for (int64_t place = 0; place < kPlaces; ++place) {
        auto& here = exchange.next([&] { return parts_of(place, group); });
        for (const at::Tensor& send : here.parts.sends) send.fill_(value_of(group.rank, step, place));
        int64_t seen = step;  // the step of the values that are there; negative before any have come
        const bool had_come = here.has_come;
        if (synchronous || travel_of(place) == Travel::kFresh) {
          exchange.exchange(here);
          EXPECT_TRUE(here.has_come);
        } else {
          exchange.post(here);
          seen = mode == DisplacedMode::kNoSync ? warmup - 1 : step - 1;
          EXPECT_EQ(had_come, seen >= 0) << step << " " << place;
        }
        for (int64_t peer = 0; peer < group.size; ++peer) {
          const at::Tensor& got = here.parts.receives[static_cast<size_t>(peer)];
          if (peer == group.rank || got.numel() == 0) continue;
          EXPECT_TRUE(at::equal(got, at::full_like(got, seen < 0 ? -1 : value_of(peer, seen, place))))
              << "rank " << group.rank << " of " << peer << " in step " << step << " at " << place << ": "
              << got[0].item<double>();
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, DisplacedExchangeTest,
    ::testing::Values(Case{2, DisplacedMode::kCorrectedAsyncGn, 1},
                      Case{3, DisplacedMode::kCorrectedAsyncGn, 0}, Case{4, DisplacedMode::kStaleGn, 2},
                      Case{2, DisplacedMode::kNoSync, 0}, Case{3, DisplacedMode::kNoSync, 2},
                      Case{2, DisplacedMode::kFullSync, 0}, Case{8, DisplacedMode::kSyncGn, 1}));

// Places post their messages one by one in the first step: more than a queue of shared memory holds.
TEST(DisplacedExchangeOnManyRanks, MayHaveMorePlacesThanAQueueHoldsMessages) {
  constexpr int64_t kMany = 1100;
  const auto body = [](comm::World world) {
    const comm::Group group = world.group({0, 1}, "displaced");
    const auto peer = static_cast<size_t>(1 - group.rank);
    DisplacedExchange exchange(group, {DisplacedMode::kCorrectedAsyncGn, /*warmup_steps=*/0});
    for (int64_t step = 0; step < 3; ++step) {
      exchange.begin(step, 3);
      for (int64_t place = 0; place < kMany; ++place) {
        auto& here = exchange.next([&] {
          DisplacedExchange::Transfers parts;
          for (size_t rank = 0; rank < 2; ++rank) {
            const std::vector<int64_t> shape = {rank == peer ? 1 : 0};
            parts.sends.push_back(at::empty(shape));
            parts.receives.push_back(at::empty(shape));
          }
          return parts;
        });
        here.parts.sends[peer].fill_(value_of(group.rank, step, place));
        exchange.post(here);
        if (step == 0) continue;
        ASSERT_EQ(here.parts.receives[peer].item<double>(), value_of(1 - group.rank, step - 1, place));
      }
    }
  };
  comm::run_ranks_as_threads(2, body, comm::Wire::kShared);
}

// Other ranks have no such place, so the exchange refuses it.
TEST(DisplacedExchangeOnManyRanks, RefusesAPlaceThatTheFirstStepDidNotVisit) {
  comm::run_ranks_as_threads(2, [](comm::World world) {
    const comm::Group group = world.group({0, 1}, "displaced");
    comm::connect(group, at::kCPU);
    DisplacedExchange exchange(group, {DisplacedMode::kCorrectedAsyncGn, 0});
    const auto make = [] {
      return DisplacedExchange::Transfers{.sends = {at::zeros({1}), at::zeros({1})},
                                          .receives = {at::zeros({1}), at::zeros({1})}};
    };
    for (int64_t step = 0; step < 2; ++step) {
      exchange.begin(step, 3);
      exchange.post(exchange.next(make));
    }
    EXPECT_THROW(exchange.next(make), std::logic_error);
    exchange.drain();
  });
}

TEST(HaloPlan, SaysWhoReadsWhichRows) {
  // A 5 x 5 convolution reads 7 rows in bands of 3, 3, 1 and none.
  const std::vector<Range> bands = {{0, 3}, {3, 3}, {6, 1}, {7, 0}};
  const HaloPlan plan(bands, bands, {.kernel = 5, .stride = 1, .padding = 2});
  EXPECT_EQ(plan.rows(1, 0), (Range{3, 2}));
  EXPECT_EQ(plan.rows(0, 1), (Range{1, 2}));
  EXPECT_EQ(plan.rows(2, 1), (Range{6, 1}));
  EXPECT_EQ(plan.rows(2, 0).length, 0);
  EXPECT_EQ(plan.rows(1, 2), (Range{4, 2}));
  EXPECT_EQ(plan.rows(1, 3).length, 0);
  EXPECT_EQ(plan.above(0), 2);
  EXPECT_EQ(plan.below(1), 2);  // a row of rank 2, and one outside of the picture
  EXPECT_EQ(plan.below(3), 0);
  // With stride 2 no row below is read.
  const HaloPlan halving({{0, 4}, {4, 4}}, {{0, 2}, {2, 2}}, {.kernel = 3, .stride = 2, .padding = 1});
  EXPECT_EQ(halving.rows(0, 1), (Range{3, 1}));
  EXPECT_EQ(halving.rows(1, 0).length, 0);
  EXPECT_EQ(halving.below(0), 0);
  EXPECT_EQ(halving.above(0), 1);
}

at::Tensor moments_of(const at::Tensor& x) {
  const auto [variance, mean] = at::var_mean(x, {-1}, /*correction=*/0);
  return at::stack({mean, variance}, -1);
}

TEST(Moments, OfPartsAreThoseOfTheWhole) {
  at::manual_seed(1);
  const at::Tensor x = at::randn({2, 3, 60}, at::kDouble) + 1000;  // a mean of many deviations
  const std::vector<at::Tensor> parts = {
      moments_of(x.narrow(2, 0, 30)).to(at::kFloat), at::full({2, 3, 2}, NAN),
      moments_of(x.narrow(2, 30, 20)).to(at::kFloat), moments_of(x.narrow(2, 50, 10)).to(at::kFloat)};
  const at::Tensor merged = merge_moments(parts, std::vector<int64_t>{3, 0, 2, 1});
  const at::Tensor truth = moments_of(x);
  EXPECT_LE(relative_error(merged.select(2, 0), truth.select(2, 0)), 1e-7);
  EXPECT_LE(relative_error(merged.select(2, 1), truth.select(2, 1)), 1e-4);
}

TEST(Moments, AreMovedByWhatIsKnown) {
  const auto of = [](double mean, double variance) {
    return at::tensor({mean, variance}, at::kDouble).view({1, 2});
  };
  // The means of squares are 5 before, and 3 and 4 for the local part.
  const at::Tensor whole = of(1, 4), own = of(1.5, 1.75), before = of(1, 2);
  const at::Tensor corrected = displaced_moments(whole, own, before, 1);
  EXPECT_NEAR(corrected[0][0].item<double>(), 1.5, 1e-12);
  EXPECT_NEAR(corrected[0][1].item<double>(), 5 + 4 - 3 - 2.25, 1e-12);
  const at::Tensor stale = displaced_moments(whole, own, before, 0.5);
  EXPECT_NEAR(stale[0][0].item<double>(), 1.25, 1e-12);
  EXPECT_NEAR(stale[0][1].item<double>(), 5 + 0.5 - 1.5625, 1e-12);
  // A variance below zero is replaced by the local part's; the mean stays.
  const at::Tensor fallen = displaced_moments(of(1, 0.1), of(3, 0.5), of(0, 9), 1);
  EXPECT_NEAR(fallen[0][0].item<double>(), 4, 1e-12);
  EXPECT_NEAR(fallen[0][1].item<double>(), 0.5, 1e-12);
}

}  // namespace
}  // namespace tessera::parallel
