#include "launch/worker.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "core/error.h"
#include "launch/signals.h"

namespace tessera::launch {
namespace {

const WorkerPlace kPlace{.rank = 1,
                         .ranks = 3,
                         .parent = 77,
                         .status_file = 5,
                         .store_file = 6,
                         .request_file = 8,
                         .sockets = {{0, 9}, {2, 7}},
                         .file_token = "abc"};

TEST(Worker, APlaceIsReadAsItWasWritten) {
  const WorkerPlace read = read_worker_place(write_worker_place(kPlace));
  EXPECT_EQ(read.rank, 1);
  EXPECT_EQ(read.ranks, 3);
  EXPECT_EQ(read.parent, 77);
  EXPECT_EQ(read.status_file, 5);
  EXPECT_EQ(read.store_file, 6);
  EXPECT_EQ(read.request_file, 8);
  EXPECT_EQ(read.sockets, kPlace.sockets);
  EXPECT_EQ(read.file_token, "abc");
}

TEST(Worker, APlaceThatMakesNoSenseIsRefused) {
  const auto refused = [](const WorkerPlace& place) {
    try {
      read_worker_place(write_worker_place(place));
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kUsage && std::string(error.what()).starts_with("[TESSERA_WORKER]");
    }
    return false;
  };
  const auto changed = [](auto change) {
    WorkerPlace place = kPlace;
    change(place);
    return place;
  };
  EXPECT_TRUE(refused(changed([](WorkerPlace& place) { place.rank = 3; })));
  EXPECT_TRUE(refused(changed([](WorkerPlace& place) { place.rank = -1; })));
  EXPECT_TRUE(refused(changed([](WorkerPlace& place) { place.ranks = 0; })));
  EXPECT_TRUE(refused(changed([](WorkerPlace& place) { place.ranks = 1 << 20; })));
  EXPECT_TRUE(refused(changed([](WorkerPlace& place) { place.ranks = 4; })));
  EXPECT_TRUE(refused(changed([](WorkerPlace& place) { place.rank = 0; })));  // a socket to itself
  EXPECT_TRUE(refused(changed([](WorkerPlace& place) { place.status_file = -1; })));
  EXPECT_TRUE(refused(changed([](WorkerPlace& place) { place.request_file = -1; })));
  EXPECT_TRUE(refused(changed([](WorkerPlace& place) { place.sockets = {{0, 9}, {3, 7}}; })));
  EXPECT_TRUE(refused(changed([](WorkerPlace& place) { place.sockets = {{0, 9}}; })));
  EXPECT_THROW(read_worker_place("no JSON"), Error);
}

struct Pipe {
  Pipe() {
    std::array<int, 2> ends = {-1, -1};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    from = comm::Descriptor(ends[0]);
    to = comm::Descriptor(ends[1]);
  }
  void close_to() { to = comm::Descriptor(); }
  // Whether all processes have closed the other end, within the time.
  bool is_closed(int milliseconds) const {
    pollfd poll = {.fd = from.number(), .events = POLLIN, .revents = 0};
    return ::poll(&poll, 1, milliseconds) > 0;
  }

  comm::Descriptor from, to;
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
    const WorkerPlace place{.rank = 0,
                            .ranks = 1,
                            .parent = ::getppid(),
                            .status_file = ::dup(table.file()),
                            .store_file = ::dup(table.file()),
                            .request_file = ::dup(table.file()),
                            .file_token = "abc"};
    ::setenv(kWorkerVariable, write_worker_place(place).c_str(), 1);
    take_worker_place();
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(128 + SIGTERM), "^$");
}

}  // namespace
}  // namespace tessera::launch
