#include "comm/heartbeat.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <memory>
#include <thread>

#include "core/system_call.h"

namespace tessera::comm {
namespace {

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

struct Pair {
  Pair() {
    std::array<int, 2> numbers = {};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, numbers.data()), 0);
    one = Descriptor(numbers[0]);
    two = Descriptor(numbers[1]);
  }
  Descriptor one, two;
};

// Returns whether the peer is found silent within a long time.
bool becomes_silent(const Heartbeat& heartbeat, int64_t peer) {
  const auto deadline = Clock::now() + std::chrono::seconds(20);
  while (!heartbeat.is_silent(peer)) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(Milliseconds(5));
  }
  return true;
}

TEST(HeartbeatOfRanks, WhoBeatsIsAliveAndWhoStopsIsSilent) {
  constexpr Milliseconds kTimeout(1000);
  const Pair beating, never;
  const auto begin = Clock::now();  // silence counts from the first line of the constructor on
  Heartbeat own({{1, beating.one.number()}, {2, never.one.number()}}, kTimeout);
  auto other = std::make_unique<Heartbeat>(std::map<int64_t, int>{{0, beating.two.number()}}, kTimeout);
  EXPECT_TRUE(becomes_silent(own, 2));  // by then the other would be silent too if it did not beat
  EXPECT_GE(Clock::now() - begin, kTimeout);
  EXPECT_FALSE(own.is_silent(1));
  EXPECT_FALSE(other->is_silent(0));
  other.reset();
  EXPECT_TRUE(becomes_silent(own, 1));
}

// After a pause of this process a peer's beats wait in the socket; they are taken at one look, and say
// nothing of later. Looks are counted by the beats that each of them sends, so that a busy machine changes
// nothing.
TEST(HeartbeatOfRanks, BeatsOfAPauseCountOnce) {
  constexpr Milliseconds kTimeout(200);
  const Pair peer;
  for (int i = 0; i < 60; ++i) EXPECT_EQ(::send(peer.two.number(), "x", 1, MSG_DONTWAIT), 1);
  const Heartbeat own({{1, peer.one.number()}}, kTimeout);
  int looks = 0;
  char beat = 0;
  while (looks < 60 && !own.is_silent(1) && ::recv(peer.two.number(), &beat, 1, 0) == 1) ++looks;
  EXPECT_LT(looks, 30);  // a timeout is ten intervals
}

TEST(HeartbeatOfRanks, BeatsThatNobodyTakesHarmNobody) {
  constexpr Milliseconds kTimeout(100);
  Pair deaf, closed;
  const Heartbeat own({{1, deaf.one.number()}, {2, closed.one.number()}}, kTimeout);
  closed.two = Descriptor();
  std::this_thread::sleep_for(3 * kTimeout);
  EXPECT_TRUE(becomes_silent(own, 1));
  EXPECT_TRUE(becomes_silent(own, 2));
}

}  // namespace
}  // namespace tessera::comm
