#include "launch/verdict.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace tessera::launch {
namespace {

using State = RankEnd::State;
constexpr std::chrono::milliseconds kTimeout(1500);

RankEnd failed(int64_t order, int exit_code, const std::string& message,
               std::optional<int64_t> peer = std::nullopt) {
  return {
      .state = State::kFailed, .failure = {exit_code, message, peer}, .place = "at step 3", .order = order};
}
RankEnd killed(int64_t order, int number) {
  return {.state = State::kKilled,
          .signal = number,
          .place = "at step 3, in all_to_all (ulysses)",
          .order = order};
}
RankEnd alive(State state) {
  return {.state = state, .place = "at step 2, in ring (ring)"};
}

std::string verdict(const std::vector<RankEnd>& ranks, int exit_code) {
  const Failure failure = judge(ranks, kTimeout);
  EXPECT_EQ(failure.exit_code, exit_code);
  return failure.message;
}

TEST(Verdict, ASignalIsTheCauseOfLostPeers) {
  EXPECT_EQ(verdict({failed(1, 4, "[rank 1] lost: Connection closed"), killed(2, SIGSEGV)}, 4),
            "[rank 1] killed by signal 11 (SIGSEGV) at step 3, in all_to_all (ulysses); the run is over");
}

TEST(Verdict, WhomTheKernelKillsForMemoryLackedIt) {
  RankEnd end = killed(2, SIGKILL);
  EXPECT_EQ(verdict({failed(1, 4, "[rank 1] lost: Connection closed"), end}, 4),
            "[rank 1] killed by signal 9 (SIGKILL, as the kernel does when memory runs out) at step 3, in "
            "all_to_all "
            "(ulysses); the run is over");
  end.no_memory = true;
  EXPECT_EQ(verdict({failed(1, 4, "[rank 1] lost: Connection closed"), end}, 5),
            "[rank 1] killed by the kernel at step 3, in all_to_all (ulysses): [memory] not enough memory; "
            "the run is "
            "over");
}

TEST(Verdict, TheFirstOfSeveralIsTheCause) {
  const std::string message = verdict({killed(2, SIGABRT), killed(1, SIGBUS), failed(3, 4, "x")}, 4);
  EXPECT_TRUE(message.starts_with("[rank 1] killed by signal 7")) << message;
}

TEST(Verdict, WhatFailsByItselfIsTheCauseOfLostPeers) {
  EXPECT_EQ(verdict({failed(1, 4, "[rank 1] lost: x"), failed(2, 5, "[memory] not enough")}, 5),
            "[rank 1] failed at step 3: [memory] not enough; the run is over");
}

TEST(Verdict, WhatBefallsAllKeepsItsCode) {
  EXPECT_EQ(verdict({failed(1, 5, "[memory] not enough"), failed(2, 5, "[memory] not enough")}, 5),
            "[memory] not enough");
}

TEST(Verdict, WhatUsersCauseKeepsItsCode) {
  EXPECT_EQ(verdict({failed(1, 3, "[x.safetensors] cut"), alive(State::kRunning)}, 3), "[x.safetensors] cut");
  EXPECT_EQ(verdict({failed(2, 2, "[out.png] disk full"), failed(1, 4, "[rank 0] lost: x")}, 2),
            "[out.png] disk full");
}

TEST(Verdict, ARankThatStandsStill) {
  const std::string message = verdict({failed(1, 4, "[rank 1] lost: Timed out"), alive(State::kStopped)}, 4);
  EXPECT_TRUE(message.starts_with("[rank 1] was stopped")) << message;
  EXPECT_NE(message.find("at step 2, in ring (ring)"), std::string::npos) << message;
}

TEST(Verdict, ARankThatGivesNoSignOfLife) {
  EXPECT_EQ(verdict({failed(1, 4, "[rank 1] lost: Timed out", 1), alive(State::kRunning)}, 4),
            "[rank 1] gave no sign of life within 1.5 s at step 2, in ring (ring); the run is over");
}

TEST(Verdict, NoRankIsTakenFromTheWords) {
  for (const auto peer : {std::optional<int64_t>(), std::optional<int64_t>(2), std::optional<int64_t>(-1)}) {
    EXPECT_EQ(verdict({failed(1, 4, "[rank 1] lost: x", peer), alive(State::kRunning)}, 4),
              "[rank 1] lost: x, reported by rank 0 at step 3");
  }
}

TEST(Verdict, LostPeersThatBlameEachOther) {
  EXPECT_EQ(verdict({failed(2, 4, "[rank 1] lost: x", 1), failed(1, 4, "[rank 0] lost: y", 0)}, 4),
            "[rank 0] lost: y, reported by rank 1 at step 3");
}

TEST(Verdict, ARunThatWasAskedToEnd) {
  EXPECT_EQ(verdict({failed(1, 4, "[rank 1] lost: x"), failed(2, kInterrupted, "stopped")}, kInterrupted),
            "stopped");
}

TEST(Verdict, WhatMayStillChange) {
  using Ends = std::vector<RankEnd>;
  EXPECT_TRUE(may_change(Ends{failed(1, 4, "x"), alive(State::kRunning)}));
  EXPECT_TRUE(may_change(Ends{failed(1, 5, "x"), alive(State::kStopped)}));
  EXPECT_TRUE(may_change(Ends{killed(1, SIGTERM), alive(State::kRunning)}));
  EXPECT_TRUE(may_change(Ends{killed(1, SIGUSR2), alive(State::kRunning)})) << "as a scheduler sends it";
  EXPECT_FALSE(may_change(Ends{failed(1, 4, "x"), failed(2, 4, "x")}));
  EXPECT_FALSE(may_change(Ends{killed(1, SIGKILL), alive(State::kRunning)}));
  EXPECT_FALSE(may_change(Ends{failed(1, 3, "x"), alive(State::kRunning)}));
}

}  // namespace
}  // namespace tessera::launch
