#include "serve/supervisor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "core/error.h"
#include "tests/support/server_processes.h"

namespace tessera::serve {
namespace {

using std::chrono::milliseconds;

void kill_one(const std::string& line, int signal) {
  const auto process = static_cast<pid_t>(number_in(line));
  ASSERT_GT(process, 0);
  ::kill(process, signal);
}

// Waits until the world of this number answers through a front, and returns the number of its launcher.
int64_t answer_of(TestServer& server, int64_t number, size_t count = 1) {
  return number_in(server.lines().await(fmt::format("answer {} ", number), count));
}

TEST(Supervisor, StartsAllAndDrains) {
  TestServer server({.worlds = 2});
  for (const int64_t number : {0, 1}) {
    EXPECT_EQ(answer_of(server, number), number_in(server.lines().await(fmt::format("world {} ", number))));
    EXPECT_NE(server.lines().await(fmt::format("loaded {}", number)), "");
    EXPECT_NE(server.lines().await(fmt::format("says world {} is ready", number)), "");
  }
  EXPECT_EQ(server.lines().count("serving"), 1U);
  ::kill(server.process(), SIGTERM);
  EXPECT_NE(server.lines().await("drain"), "");
  EXPECT_EQ(server.exit_code(), 0);
  EXPECT_TRUE(server.is_all_gone());
}

TEST(Supervisor, WorldsOutliveTheFront) {
  TestServer server({.worlds = 2});
  const int64_t before = answer_of(server, 1);
  server.lines().await("loaded 1");
  kill_one(server.lines().await("front "), SIGKILL);
  EXPECT_NE(server.lines().await("front ", 2), "");
  EXPECT_EQ(number_in(server.lines().await("fronts before: ", 2)), 1);
  EXPECT_EQ(answer_of(server, 1, 2), before);
  EXPECT_NE(server.lines().await("loaded 1", 2), "") << "a new front does not know who was there before";
  EXPECT_EQ(server.lines().count("world "), 2U);
  EXPECT_EQ(server.lines().count("serving"), 1U);
}

TEST(Supervisor, WorldsAreReplacedWhole) {
  TestServer server({.worlds = 2});
  const int64_t first = answer_of(server, 0), other = answer_of(server, 1);
  server.lines().await("rank 0 1 ");
  kill_one(server.lines().await("world 0 "), SIGKILL);
  EXPECT_NE(answer_of(server, 0, 2), first);
  EXPECT_NE(server.lines().await("down 0: was ended by signal 9"), "");
  kill_one(server.lines().await("rank 0 1 ", 2), SIGKILL);
  EXPECT_NE(answer_of(server, 0, 3), first);
  EXPECT_NE(server.lines().await("down 0: ", 2), "");
  server.ask();
  EXPECT_EQ(answer_of(server, 1, 2), other);
  EXPECT_EQ(server.lines().count("front "), 1U);
}

TEST(Supervisor, WhatIsStoppedIsReplaced) {
  TestServer server({.worlds = 3});
  for (const int64_t number : {0, 1, 2}) answer_of(server, number);
  kill_one(server.lines().await("front "), SIGSTOP);
  kill_one(server.lines().await("world 0 "), SIGSTOP);
  kill_one(server.lines().await("rank 1 0 ", 1), SIGSTOP);
  EXPECT_NE(server.lines().await("front ", 2), "");
  EXPECT_NE(answer_of(server, 0, 2), 0);
  EXPECT_NE(answer_of(server, 1, 2), 0);
  EXPECT_NE(server.lines().await("world 0 ", 2), "");
  EXPECT_NE(server.lines().await("world 1 ", 2), "");
  EXPECT_EQ(server.lines().count("world 2 "), 1U);
}

TEST(Supervisor, WhatGoesOnSoonIsNotReplaced) {
  TestServer server({});
  answer_of(server, 0);
  kill_one(server.lines().await("world 0 "), SIGSTOP);
  std::this_thread::sleep_for(milliseconds(500));
  kill_one(server.lines().await("world 0 "), SIGCONT);
  std::this_thread::sleep_for(milliseconds(2500));
  server.ask();
  answer_of(server, 0, 2);
  EXPECT_EQ(server.lines().count("world 0 "), 1U);
}

TEST(Supervisor, AFrontThatHangsIsReplaced) {
  TestServer server({.most_silence = milliseconds(2000)});
  const int64_t before = answer_of(server, 0);
  server.hang();
  EXPECT_NE(server.lines().await("says front: has been silent for 2 s; it begins again"), "");
  EXPECT_NE(server.lines().await("front ", 2), "");
  EXPECT_EQ(answer_of(server, 0, 2), before);
}

// While it takes up the jobs of the one before.
TEST(Supervisor, AFrontHasMoreTimeBeforeItServes) {
  const auto hangs = [] {
    std::this_thread::sleep_for(milliseconds(3000));
    return std::optional<launch::Failure>();
  };
  TestServer patient({.most_silence = milliseconds(2000), .front_instead = hangs});
  EXPECT_NE(answer_of(patient, 0), 0);
  EXPECT_EQ(patient.lines().count("front "), 1U);
  TestServer impatient({.most_silence_at_start = milliseconds(1000), .front_instead = hangs});
  EXPECT_NE(impatient.lines().await("says front: has been silent for 1 s"), "");
}

// As on a machine where nothing gets on for a while.
TEST(Supervisor, TimeDoesNotCountInWhichTheSupervisorStoodStillToo) {
  TestServer server({.most_silence = milliseconds(2000)});
  answer_of(server, 0);
  server.hang();
  ASSERT_NE(server.lines().await("hangs"), "");
  std::this_thread::sleep_for(milliseconds(300));  // it hears what the front said before
  ::kill(server.process(), SIGSTOP);
  std::this_thread::sleep_for(milliseconds(3000));
  ::kill(server.process(), SIGCONT);
  std::this_thread::sleep_for(milliseconds(300));  // it looks at the front
  server.ask();
  answer_of(server, 0, 2);
  EXPECT_EQ(server.lines().count("front "), 1U);
}

TEST(Supervisor, TheFrontMayHaveAWorldReplaced) {
  TestServer server({});
  const int64_t before = answer_of(server, 0);
  server.replace(0);
  EXPECT_NE(answer_of(server, 0, 2), before);
  EXPECT_NE(server.lines().await("down 0: does not answer"), "");
}

TEST(Supervisor, ALastingFailureAtTheFirstStartEndsTheServer) {
  TestServer world({.world_instead = [](int64_t) -> std::optional<launch::Failure> {
    throw Error(ErrorKind::kInput, "model", "is damaged");
  }});
  EXPECT_EQ(world.exit_code(), 3);
  EXPECT_EQ(world.lines().await("ends: "), "ends: [model] is damaged");
  EXPECT_TRUE(world.is_all_gone());
  TestServer front({.front_instead = [] { return launch::Failure{2, "no such folder"}; }});
  EXPECT_EQ(front.exit_code(), 2);
  EXPECT_EQ(front.lines().await("ends: "), "ends: no such folder");
  EXPECT_TRUE(front.is_all_gone());
}

TEST(Supervisor, LaterFailuresDoNot) {
  int starts[2];
  ASSERT_EQ(::pipe2(starts, O_CLOEXEC | O_NONBLOCK), 0);
  ASSERT_EQ(::write(starts[1], "gbg", 3), 3);  // the second start fails
  TestServer server({.world_instead = [&](int64_t) -> std::optional<launch::Failure> {
    char start = 0;
    if (::read(starts[0], &start, 1) == 1 && start == 'b') return launch::Failure{3, "is damaged"};
    return std::nullopt;
  }});
  const int64_t first = answer_of(server, 0);
  kill_one(server.lines().await("world 0 "), SIGKILL);
  EXPECT_NE(answer_of(server, 0, 2), first);
  EXPECT_NE(server.lines().await("down 0: is damaged"), "");
  EXPECT_EQ(server.lines().count("world 0 "), 3U);
  ::close(starts[0]);
  ::close(starts[1]);
}

TEST(Supervisor, StartsInVainComeEverMoreSeldom) {
  TestServer server({.world_instead = [](int64_t) { return launch::Failure{4, "no peer"}; }});
  EXPECT_NE(server.lines().await("says world 0: no peer; it begins again in 400 ms"), "");
  EXPECT_EQ(server.lines().count("says world 0: no peer; it begins again"),
            4U);  // at once, after 100 and 200 ms
  EXPECT_NE(server.lines().await("down 0: no peer", 4), "");
  ::kill(server.process(), SIGINT);
  EXPECT_EQ(server.exit_code(), 0);
}

TEST(Supervisor, ASecondSignalEndsAtOnce) {
  TestServer server({.front_ignores_drain = true});
  answer_of(server, 0);
  ::kill(server.process(), SIGINT);
  EXPECT_NE(server.lines().await("drain"), "");
  ::kill(server.process(), SIGTERM);
  EXPECT_EQ(server.exit_code(), 128 + SIGTERM);
  EXPECT_TRUE(server.is_all_gone());
}

TEST(Supervisor, DrainingHasAnEnd) {
  TestServer server({.drain = milliseconds(100), .front_ignores_drain = true});
  answer_of(server, 0);
  ::kill(server.process(), SIGTERM);
  EXPECT_EQ(server.exit_code(), 0);
  EXPECT_TRUE(server.is_all_gone());
}

TEST(Supervisor, AllDieWithIt) {
  TestServer server({.worlds = 2});
  for (const int64_t number : {0, 1}) answer_of(server, number);
  server.lines().await("rank ", 4);
  kill_one(server.lines().await("rank 0 1 "), SIGSTOP);  // what is stopped handles no signal
  kill_one(server.lines().await("world 1 "), SIGSTOP);
  ::kill(server.process(), SIGKILL);
  EXPECT_EQ(server.exit_code(), -1);
  EXPECT_TRUE(server.is_all_gone());
}

// Kills and stops processes at random times. Afterwards every world answers, and nothing is left of others.
TEST(Supervisor, SurvivesRandomKillsAndStops) {
  constexpr int kKills = 60;
  TestServer server({.worlds = 2, .ranks = 3});
  for (const int64_t number : {0, 1}) answer_of(server, number);
  std::mt19937 random(7);
  const std::vector<std::string> victims = {"front ",    "world 0 ",  "world 1 ", "rank 0 0 ",
                                            "rank 0 2 ", "rank 1 0 ", "rank 1 1 "};
  for (int kill = 0; kill < kKills; ++kill) {
    std::this_thread::sleep_for(milliseconds(random() % 120));
    const std::string line = server.lines().await(victims[random() % victims.size()]);
    kill_one(line, random() % 5 == 0 ? SIGSTOP : SIGKILL);
  }
  // What was stopped is noticed by now, and what was started last may be lost with it.
  std::this_thread::sleep_for(milliseconds(4000));
  for (const int64_t number : {0, 1}) {
    const std::string words = fmt::format("answer {} ", number);
    const size_t before = server.lines().count(words);
    server.ask();
    EXPECT_EQ(answer_of(server, number, before + 1),
              number_in(server.lines().await(fmt::format("world {} ", number))));
  }
  ::kill(server.process(), SIGTERM);
  EXPECT_EQ(server.exit_code(), 0);
  EXPECT_TRUE(server.is_all_gone());
}

}  // namespace
}  // namespace tessera::serve
