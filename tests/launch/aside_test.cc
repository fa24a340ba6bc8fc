// Work in a fork, and how its end is told.
#include "launch/aside.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "core/error.h"

namespace tessera::launch {
namespace {

TEST(Aside, ReturnsWhatTheForkReturns) {
  const pid_t own = ::getpid();
  EXPECT_EQ(run_aside([] { return std::string(200'000, 'x'); }),
            std::string(200'000, 'x'));  // more than a pipe holds
  EXPECT_NE(run_aside([] { return std::to_string(::getpid()); }), std::to_string(own));
  EXPECT_EQ(run_aside([] { return std::string(); }), "");
}

TEST(Aside, ThrowsWhatTheForkThrows) {
  const auto failure_of = [](const std::function<std::string()>& run) {
    try {
      run_aside(run);
    } catch (const FailedAside& failed) {
      return failed.failure;
    }
    return Failure{};
  };
  const Failure usage = failure_of([]() -> std::string { usage_error(field("nproc"), "is 7"); });
  EXPECT_EQ(usage.exit_code, 2);
  EXPECT_EQ(spell(usage.message), "[nproc] is 7");
  const Failure own = failure_of([]() -> std::string { throw FailedAside{{4, "rank 1 was lost"}}; });
  EXPECT_EQ(own.exit_code, 4);
  EXPECT_EQ(own.message, "rank 1 was lost");
  EXPECT_EQ(failure_of([]() -> std::string { ::_exit(0); }).exit_code, kInternalError);
  EXPECT_EQ(failure_of([]() -> std::string {
              ::raise(SIGKILL);
              return "";
            }).exit_code,
            static_cast<int>(ErrorKind::kMemory));
}

}  // namespace
}  // namespace tessera::launch
