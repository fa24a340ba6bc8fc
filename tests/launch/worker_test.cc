#include "launch/worker.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "core/system_call.h"
#include "launch/signals.h"

namespace tessera::launch {
namespace {

struct Pipe {
  Pipe() {
    std::array<int, 2> ends = {-1, -1};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    from = Descriptor(ends[0]);
    to = Descriptor(ends[1]);
  }
  void close_to() { to = Descriptor(); }
  // Whether all processes have closed the other end, within the time.
  bool is_closed(int milliseconds) const {
    pollfd poll = {.fd = from.number(), .events = POLLIN, .revents = 0};
    return ::poll(&poll, 1, milliseconds) > 0;
  }

  Descriptor from, to;
};

constexpr int kLong = 20'000;

// A launcher is a process, whichever of its threads has started a rank.
TEST(Worker, DiesWithTheProcessNotWithTheThreadThatStartedIt) {
  Pipe ready, life, launcher_may_end;
  const pid_t launcher = ::fork();
  ASSERT_GE(launcher, 0);
  if (launcher == 0) {
    const pid_t parent = ::getpid();
    std::thread([&] {
      if (::fork() == 0) {
        die_with_parent(parent);
        ready.close_to();
        launcher_may_end.close_to();
        while (true) ::pause();
      }
      ready.close_to();
      ready.is_closed(kLong);
    }).join();
    life.close_to();
    launcher_may_end.close_to();
    launcher_may_end.is_closed(kLong);
    ::_exit(0);
  }
  ready.close_to();
  life.close_to();
  ASSERT_TRUE(ready.is_closed(kLong));
  EXPECT_FALSE(life.is_closed(500)) << "the rank died with a thread";
  launcher_may_end.close_to();
  EXPECT_EQ(::waitpid(launcher, nullptr, 0), launcher);
  EXPECT_TRUE(life.is_closed(kLong)) << "the rank outlives the process";
}

// Its launcher blocks signals, so that one may wait until the rank has become a worker.
TEST(Worker, SaysNothingWhenItsLauncherEndsItAtOnce) {
  StatusTable table(1);
  const auto end = [&] {
    install_signal_handlers();
    sigset_t blocked;
    ::sigemptyset(&blocked);
    ::sigaddset(&blocked, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
    ::raise(SIGTERM);
    become_worker({.rendezvous = {}, .statuses = table}, ::getppid());
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(128 + SIGTERM), "^$");
}

}  // namespace
}  // namespace tessera::launch
