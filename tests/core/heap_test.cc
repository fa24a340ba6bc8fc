#include "core/heap.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace tessera {
namespace {

TEST(AvailableMemory, IsAPartOfTheMachines) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t all = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * page;
  EXPECT_GT(available_memory(), 0U);
  EXPECT_LT(available_memory(), all);
}

}  // namespace
}  // namespace tessera
