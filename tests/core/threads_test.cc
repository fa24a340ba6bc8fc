#include "core/threads.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

namespace tessera {
namespace {

TEST(Threads, AreAsManyAsAskedFor) {
  EXPECT_EQ(set_threads(3), 3);
  EXPECT_EQ(at::get_num_threads(), 3);
  EXPECT_EQ(set_threads(1), 1);
  EXPECT_EQ(at::get_num_threads(), 1);
}

// In the child, no thread's stack fits into the addresses that are left. OpenMP would end it with exit
// code 1.
TEST(ThreadsDeathTest, AreThoseThatTheSystemStarts) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer ends a program that has no addresses left";
#endif
  const auto compute = [] {
    rlimit stack = {};
    ::getrlimit(RLIMIT_STACK, &stack);
    const rlimit none = {1, 1};
    ::setrlimit(RLIMIT_AS, &none);
    ::_exit(set_threads(200) == 1 && at::get_num_threads() == 1 ? 0 : 2);
  };
  EXPECT_EXIT(compute(), ::testing::ExitedWithCode(0), "");
}

TEST(Threads, AreOneWhileAProcessThatForksComputesAlone) {
  at::set_num_threads(2);
  {
    const ComputesAlone alone;
    EXPECT_EQ(at::get_num_threads(), 1);
  }
  EXPECT_EQ(at::get_num_threads(), 2);
  at::set_num_threads(1);
}

#ifdef _OPENMP
TEST(Threads, AreThoseOfTheTeamThatOpenMpMakes) {
  omp_set_max_active_levels(0);
  EXPECT_EQ(set_threads(3), 1);
  EXPECT_EQ(at::get_num_threads(), 1);
  omp_set_max_active_levels(1);
  omp_set_dynamic(1);
  EXPECT_EQ(set_threads(2), 2);
  EXPECT_EQ(omp_get_dynamic(), 0);
  set_threads(1);
}
#endif

}  // namespace
}  // namespace tessera
