#include "launch/cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>
#include <vector>

namespace tessera::launch {
namespace {

TEST(Cores, AreSharedEvenly) {
  const std::vector<int> cores = {1, 2, 4, 5, 7};
  EXPECT_EQ(share_of(cores, 0, 2, 1), (std::vector<int>{1, 2}));
  EXPECT_EQ(share_of(cores, 1, 2, 2), (std::vector<int>{4, 5}));
  EXPECT_EQ(share_of(cores, 4, 5, 1), (std::vector<int>{7}));
  EXPECT_TRUE(share_of(cores, 0, 2, 3).empty());  // more threads than cores
  EXPECT_TRUE(share_of(cores, 5, 6, 1).empty());
}

// Of a thread, so that the process keeps its cores.
TEST(Cores, AThreadHasTheCoresThatItIsPinnedTo) {
  std::thread([] {
    const std::vector<int> all = allowed_cores();
    cpu_set_t set;
    ASSERT_EQ(::sched_getaffinity(0, sizeof(set), &set), 0);
    ASSERT_EQ(static_cast<int>(all.size()), CPU_COUNT(&set));
    for (const int core : all) EXPECT_TRUE(CPU_ISSET(core, &set)) << core;
    pin_to({});
    EXPECT_EQ(allowed_cores(), all);
    pin_to({all.back()});
    EXPECT_EQ(allowed_cores(), std::vector<int>{all.back()});
    EXPECT_EQ(::sched_getcpu(), all.back());
  }).join();
}

}  // namespace
}  // namespace tessera::launch
