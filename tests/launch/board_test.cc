#include "launch/board.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "launch/cores.h"

namespace tessera::launch {
namespace {

TEST(Board, SaysWhereARankStands) {
  Board board(3);
  RankStatus& status = board.rank(2);
  EXPECT_EQ(status.place(), "while joining");
  status.joined();
  EXPECT_EQ(status.place(), "before the first stage");
  status.started(engine::Stage::kEncode);
  EXPECT_EQ(status.place(), "in stage 'encode'");
  status.started(engine::Stage::kDenoise);
  EXPECT_EQ(status.place(), "at step 1");
  status.step_done(4);
  status.operation_began({.axis = "ulysses", .name = "all_to_all"});
  EXPECT_EQ(status.place(), "at step 5, in all_to_all (ulysses)");
  status.operation_ended();
  EXPECT_EQ(status.place(), "at step 5, after all_to_all (ulysses)");
  status.operation_began({.axis = std::string(100, 'a'), .name = "send"});
  EXPECT_TRUE(status.place().starts_with("at step 5, in send (aaaa")) << status.place();
  status.finishing();
  EXPECT_TRUE(status.place().starts_with("after the last stage")) << status.place();
  EXPECT_EQ(board.rank(1).place(), "while joining");
}

TEST(Board, KeepsWhyARankFailed) {
  Board board(1);
  EXPECT_FALSE(board.rank(0).failure());
  board.rank(0).failed({5, std::string(10000, 'x')});
  ASSERT_TRUE(board.rank(0).failure());
  EXPECT_EQ(board.rank(0).failure()->exit_code, 5);
  EXPECT_EQ(board.rank(0).failure()->message, std::string(4095, 'x'));
}

TEST(Board, RanksEndAtOneQuestion) {
  for (int round = 0; round < 50; ++round) {
    constexpr int64_t kRanks = 4;
    Board board(kRanks);
    std::vector<int64_t> asked(kRanks);
    std::vector<std::thread> threads;
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        int64_t& count = asked[static_cast<size_t>(rank)];
        do ++count;
        while (!board.must_end(rank));
      });
    }
    std::this_thread::sleep_for(std::chrono::microseconds(round * 20));
    board.ask_to_end();
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(asked, std::vector<int64_t>(kRanks, asked[0]));
  }
}

TEST(Cores, AreSharedEvenly) {
  const std::vector<int> cores = {1, 2, 4, 5, 7};
  EXPECT_EQ(share_of(cores, 0, 2, 1), (std::vector<int>{1, 2}));
  EXPECT_EQ(share_of(cores, 1, 2, 2), (std::vector<int>{4, 5}));
  EXPECT_EQ(share_of(cores, 4, 5, 1), (std::vector<int>{7}));
  EXPECT_TRUE(share_of(cores, 0, 2, 3).empty());  // more threads than cores
  EXPECT_TRUE(share_of(cores, 5, 6, 1).empty());
}

}  // namespace
}  // namespace tessera::launch
