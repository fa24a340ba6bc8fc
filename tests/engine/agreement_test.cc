#include "engine/agreement.h"

#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>
#include <vector>

#include "core/error.h"
#include "tests/support/rank_threads.h"

namespace tessera::engine {
namespace {

// Runs `body` on each of one to four ranks, with an agreement of all of them.
void among_ranks(const std::function<void(Agreement&, int64_t rank, int64_t size)>& body) {
  for (const int64_t size : {1, 2, 3, 4}) {
    SCOPED_TRACE(size);
    std::vector<int64_t> all(static_cast<size_t>(size));
    std::iota(all.begin(), all.end(), 0);
    const auto run_rank = [&](comm::World world) {
      Agreement agreement(world.group(all, "test"));
      body(agreement, world.rank(), size);
      agreement.finish();
    };
    comm::run_ranks_as_threads(size, run_rank, comm::Wire::kShared);
  }
}

// Whichever rank has it, and whether it is the first, the last, or one of several.
TEST(AgreementOfRanks, TakesTheLeastNumber) {
  among_ranks([](Agreement& agreement, int64_t rank, int64_t size) {
    for (int64_t low = 0; low < size; ++low)
      EXPECT_EQ(agreement.least(rank == low ? 3 : 5 + rank), 3) << "of rank " << low << " on rank " << rank;
    EXPECT_EQ(agreement.least(7), 7);
  });
}

TEST(AgreementOfRanks, FollowsTheFirst) {
  among_ranks(
      [](Agreement& agreement, int64_t rank, int64_t) { EXPECT_EQ(agreement.follow(10 + rank), 10); });
}

// Rank 0 may be far ahead of the others, and asks itself alone.
TEST(AgreementOfRanks, AsksTheFirst) {
  among_ranks([](Agreement& agreement, int64_t rank, int64_t) {
    for (int turn = 0; turn < 200; ++turn) {
      const bool answer = turn % 3 == 2;
      EXPECT_EQ(agreement.ask([&] { return rank == 0 ? answer : !answer; }), answer);
      EXPECT_EQ(agreement.has_said_yes(), answer);
    }
    EXPECT_FALSE(agreement.ask({}));
  });
}

// Each rank that fails throws its own failure, and the others name the first of them.
TEST(AgreementOfRanks, SettlesWhoFailed) {
  among_ranks([](Agreement& agreement, int64_t rank, int64_t size) {
    EXPECT_EQ(agreement.settle(nullptr), nullptr);
    for (int64_t first = 0; first < size; ++first) {
      const bool fails = rank >= first;
      const auto own = fails ? std::make_exception_ptr(std::runtime_error("broke")) : nullptr;
      const std::exception_ptr settled = agreement.settle(own);
      if (fails) {
        EXPECT_EQ(settled, own) << rank;
        continue;
      }
      try {
        std::rethrow_exception(settled);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kPeer);
        EXPECT_STREQ(error.what(), fmt::format("[rank {}] failed: broke", first).c_str());
      }
    }
  });
}

}  // namespace
}  // namespace tessera::engine
