#include "launch/launcher.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <functional>

namespace tessera::launch {
namespace {

constexpr auto kLong = std::chrono::seconds(20);

// Whether the other end of the socket is closed everywhere, within the time.
bool is_closed(int socket) {
  pollfd poll = {.fd = socket, .events = POLLIN, .revents = 0};
  char byte = 0;
  return ::poll(&poll, 1, static_cast<int>(std::chrono::milliseconds(kLong).count())) == 1 &&
         ::read(socket, &byte, 1) == 0;
}

// Launches in a fork, because launching needs a process without other threads.
void expect_exit(int code, int64_t ranks, const std::function<int(const Worker&)>& run) {
  const auto launch = [&] { ::_exit(launch_ranks(ranks, kLong, run).exit_code); };
  EXPECT_EXIT(launch(), testing::ExitedWithCode(code), "^$");
}

TEST(Launcher, ItsForksKnowTheirPlaces) {
  expect_exit(0, 3, [](const Worker& worker) {
    const comm::Rendezvous& place = worker.rendezvous;
    bool right = place.world_size == 3 && place.local_world_size == 3 && place.rank == place.local_rank &&
                 place.sockets.size() == 2 && place.store_file >= 0;
    for (const auto& [peer, socket] : place.sockets) {
      right = right && peer != place.rank && ::write(socket, "x", 1) == 1;
    }
    for (const auto& [peer, socket] : place.sockets) {
      char byte = 0;
      right = right && ::read(socket, &byte, 1) == 1 && byte == 'x';
    }
    return right ? 0 : 9;
  });
}

// Rank 0 is started while the launcher holds the ends of all other ranks.
TEST(Launcher, TheEndOfARankIsSeenByItsPeers) {
  expect_exit(0, 3, [](const Worker& worker) {
    const comm::Rendezvous& place = worker.rendezvous;
    return place.rank == 2 || is_closed(place.sockets.at(2)) ? 0 : 9;
  });
}

TEST(Launcher, ReturnsWhyARankFailed) {
  expect_exit(3, 2, [](const Worker& worker) {
    if (worker.rendezvous.rank == 0) return 0;
    worker.status().failed({3, "no such file"});
    return 3;
  });
  expect_exit(4, 2, [](const Worker& worker) { return worker.rendezvous.rank == 0 ? 0 : ::raise(SIGKILL); });
}

}  // namespace
}  // namespace tessera::launch
