#include "core/heap.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace tessera {
namespace {

TEST(TotalMemory, IsNoMoreThanTheMachines) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t all = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * page;
  EXPECT_GT(total_memory(), 0U);
  EXPECT_LE(total_memory(), all);
}

}  // namespace
}  // namespace tessera
