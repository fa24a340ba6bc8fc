#include "job/memory_check.h"

#include <gtest/gtest.h>

namespace tessera::job {
namespace {

constexpr uint64_t kGigabyte = uint64_t{1} << 30;

const std::vector<MemoryLimit> kLimits = {
    {.name = "this machine", .most = 8 * kGigabyte, .available = kGigabyte},
    {.name = "the control group /a", .most = 4 * kGigabyte, .available = 3 * kGigabyte}};

TEST(MemoryCheck, FindsWhatCannotBeHad) {
  const auto lack = find_lack(5 * kGigabyte, kLimits);
  ASSERT_TRUE(lack.has_value());
  EXPECT_TRUE(lack->is_certain);
  EXPECT_TRUE(
      lack->message.starts_with("the run needs about 5.00 GiB, but the control group /a has 4.00 GiB"))
      << lack->message;
}

// What is not free may become free.
TEST(MemoryCheck, FindsWhatIsNotFree) {
  const auto lack = find_lack(2 * kGigabyte, kLimits);
  ASSERT_TRUE(lack.has_value());
  EXPECT_FALSE(lack->is_certain);
  EXPECT_TRUE(lack->message.starts_with("the run needs about 2.00 GiB, but this machine has 1.00 GiB free"))
      << lack->message;
}

TEST(MemoryCheck, FindsNothingWithinLimits) {
  EXPECT_FALSE(find_lack(kGigabyte, kLimits).has_value());
  EXPECT_FALSE(find_lack(kUnlimited, {}).has_value()) << "nothing is known";
}

}  // namespace
}  // namespace tessera::job
