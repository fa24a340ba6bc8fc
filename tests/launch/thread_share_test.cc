#include "launch/thread_share.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <thread>

namespace tessera::launch {
namespace {

struct Case {
  int64_t now, most;
  CoreUse use;
  int64_t expected;
};

class FittingThreads : public ::testing::TestWithParam<Case> {};

TEST_P(FittingThreads, AreAsManyAsGetCores) {
  const auto& [now, most, use, expected] = GetParam();
  EXPECT_EQ(fitting_threads(now, most, use), expected);
}

INSTANTIATE_TEST_SUITE_P(Cases, FittingThreads,
                         ::testing::Values(Case{2, 2, {0.01, 0}, 2}, Case{2, 2, {0.1, 0}, 2},
                                           Case{2, 2, {0.2, 0}, 1},     // one less at least
                                           Case{2, 2, {0.99, 2}, 1},    // and never none
                                           Case{64, 64, {0.5, 0}, 32},  // as many as were served
                                           Case{1, 1, {0.9, 0}, 1}, Case{1, 2, {0.0, 1}, 1},
                                           Case{1, 2, {0.0, 2}, 2}, Case{1, 2, {0.0, -3}, 1},
                                           Case{4, 8, {0.0, 100}, 8}, Case{4, 8, {0.0, 6}, 6},
                                           Case{4, 8, {0.1, 100}, 4}));  // those that run wait already

// Of threads of which there are far more than cores, most wait.
TEST(ThreadShare, TakesFewerThreadsWhereCoresAreBusy) {
  const bool is_told = std::ifstream("/proc/self/schedstat").good();
  at::set_num_threads(2);
  {
    ThreadShare share;
    std::atomic<bool> ends = false;
    std::vector<std::thread> busy;
    for (unsigned i = 0; i < 4 * std::thread::hardware_concurrency(); ++i) {
      busy.emplace_back([&] {
        while (!ends) continue;
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    share.fit();
    EXPECT_EQ(at::get_num_threads(), is_told ? 1 : 2);
    ends = true;
    for (std::thread& one : busy) one.join();
  }
  EXPECT_EQ(at::get_num_threads(), 2);
  at::set_num_threads(1);
}

TEST(ThreadShare, LeavesTheNumberOfThreadsAsItWas) {
  at::set_num_threads(3);
  {
    ThreadShare share;
    for (int i = 0; i < 5; ++i) share.fit();
  }
  EXPECT_EQ(at::get_num_threads(), 3);
  at::set_num_threads(1);
}

}  // namespace
}  // namespace tessera::launch
