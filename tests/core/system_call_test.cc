#include "core/system_call.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace tessera {
namespace {

TEST(SystemCall, IsMadeAgainOnlyAfterASignal) {
  int calls = 0;
  const auto fail_with = [&](int code) {
    return [&calls, code] {
      errno = ++calls < 3 ? EINTR : code;
      return code == 0 && calls == 3 ? 7 : -1;
    };
  };
  EXPECT_EQ(uninterrupted(fail_with(0)), 7);
  EXPECT_EQ(calls, 3);
  calls = 0;
  EXPECT_EQ(uninterrupted(fail_with(EAGAIN)), -1);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(errno, EAGAIN);
}

TEST(SystemCall, LimitsOfTheUserAreNamed) {
  EXPECT_EQ(system_reason(EFBIG), "File too large (ulimit -f)");
  EXPECT_EQ(system_reason(EMFILE), "Too many open files (ulimit -n)");
  EXPECT_EQ(system_reason(EACCES), "Permission denied");
}

TEST(SystemCall, AllDescriptorsThatThereMayBe) {
  rlimit before = {}, after = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few = {.rlim_cur = 10, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  allow_many_descriptors();
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &after), 0);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(after.rlim_cur, before.rlim_max);
}

}  // namespace
}  // namespace tessera
