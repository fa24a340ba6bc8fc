// Tests simulated times against what a clock would show, computed by hand.
#include "plan/simulation.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace tessera::plan {
namespace {

constexpr int64_t kMessage = 100;

Event operation(int64_t flops) {
  return {.what = OperationEvent{.name = "linear", .role = {}, .output = {}, .inputs = {}, .flops = flops}};
}

Event exchange(int64_t number, int64_t own) {
  return {.what = CollectiveEvent{.axis = "ring",
                                  .name = "send_receive",
                                  .number = number,
                                  .bytes = kMessage,
                                  .ranks = {0, 1},
                                  .sends = {{1 - own, kMessage}},
                                  .receives = {{1 - own, kMessage}}}};
}

Event single(int64_t number, bool sends) {
  return {.what = CollectiveEvent{
              .axis = "pp",
              .name = sends ? "send" : "receive",
              .number = number,
              .bytes = sends ? kMessage : 0,
              .ranks = {0, 1},
              .sends = sends ? std::vector<Transfer>{{1, kMessage}} : std::vector<Transfer>{},
              .receives = sends ? std::vector<Transfer>{} : std::vector<Transfer>{{0, kMessage}}}};
}

Event wait(int64_t number) {
  return {.what = WaitEvent{number}};
}

Trace of_two(std::vector<Event> first, std::vector<Event> second) {
  Trace trace{.model = {}, .settings = Json::object(), .world_size = 2, .ranks = {}};
  trace.ranks = {{.rank = 0, .events = std::move(first)}, {.rank = 1, .events = std::move(second)}};
  return trace;
}

// A FLOP takes a second; a message of 100 bytes 2 s, and half a second besides.
const Costs kCosts{.operation = [](const OperationEvent& each) { return static_cast<double>(each.flops); },
                   .bandwidth = 50,
                   .latency = 0.5};

TEST(Simulation, WaitsForTheSlower) {
  const auto ranks =
      simulate(of_two({operation(1), exchange(0, 0), wait(0)}, {operation(4), exchange(0, 1), wait(0)}),
               kCosts, "file");
  EXPECT_DOUBLE_EQ(ranks[0].end, 6.5);
  EXPECT_DOUBLE_EQ(ranks[1].end, 6.5);
  EXPECT_DOUBLE_EQ(ranks[0].waiting, 5.5);
  EXPECT_DOUBLE_EQ(ranks[1].waiting, 2.5);
}

TEST(Simulation, HidesMessagesBehindWork) {
  const auto ranks =
      simulate(of_two({exchange(0, 0), operation(2), wait(0)}, {exchange(0, 1), operation(3), wait(0)}),
               kCosts, "file");
  EXPECT_DOUBLE_EQ(ranks[0].end, 2.5);
  EXPECT_DOUBLE_EQ(ranks[1].end, 3);
  EXPECT_DOUBLE_EQ(ranks[1].waiting, 0);
}

// A pipeline: the second stage begins with a patch when it is there, while the first works on the next.
TEST(Simulation, PassesSingleMessagesOn) {
  const auto ranks =
      simulate(of_two({operation(3), single(0, true), operation(3), single(1, true), wait(0), wait(1)},
                      {single(0, false), single(1, false), wait(0), operation(3), wait(1), operation(3)}),
               kCosts, "file");
  // 3 + 2.5 until the first patch is there; the second, there at 8.5, finds the stage free at that moment.
  EXPECT_DOUBLE_EQ(ranks[1].end, 11.5);
  EXPECT_DOUBLE_EQ(ranks[1].waiting, 5.5);
}

TEST(Simulation, RefusesWhatNeverEnds) {
  const auto refuses = [](const Trace& trace) {
    try {
      simulate(trace, kCosts, "file");
      ADD_FAILURE() << "was simulated";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
    }
  };
  refuses(of_two({exchange(0, 0), wait(0)}, {operation(1)}));
  refuses(of_two({wait(3)}, {}));
  Trace half = of_two({operation(1)}, {});
  half.ranks.pop_back();
  refuses(half);
}

}  // namespace
}  // namespace tessera::plan
