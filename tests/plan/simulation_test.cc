// Tests simulated times against what a clock would show, computed by hand.
#include "plan/simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "core/error.h"
#include "plan/schedule.h"

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

Event single(int64_t number, bool sends, int64_t peer) {
  const std::vector<Transfer> message = {{peer, kMessage}};
  return {.what = CollectiveEvent{.axis = "pp",
                                  .name = sends ? "send" : "receive",
                                  .number = number,
                                  .bytes = sends ? kMessage : 0,
                                  .ranks = {0, 1, 2},
                                  .sends = sends ? message : std::vector<Transfer>{},
                                  .receives = sends ? std::vector<Transfer>{} : message}};
}

Event wait(int64_t number) {
  return {.what = WaitEvent{number}};
}

Event in_step(int64_t step, Event event) {
  event.step = step;
  return event;
}

Trace of_two(std::vector<Event> first, std::vector<Event> second) {
  Trace trace{.model = {}, .settings = Json::object(), .world_size = 2, .ranks = {}};
  trace.ranks = {{.rank = 0, .events = std::move(first)}, {.rank = 1, .events = std::move(second)}};
  return trace;
}

// A FLOP takes a second; a message of 100 bytes 2 s, and half a second besides.
Costs costs_of_toys() {
  Costs costs;
  costs.links = {{.kind = "wire", .bandwidth = 50, .latency = 0.5, .measured = {}}};
  return costs;
}

Simulation simulated(const Trace& trace, int64_t repetitions = 1, const Costs& costs = costs_of_toys()) {
  std::vector<std::vector<double>> all_seconds;
  for (const RankTrace& rank : trace.ranks) {
    std::vector<double>& seconds = all_seconds.emplace_back();
    for (const Event& event : rank.events) {
      const auto* const each = std::get_if<OperationEvent>(&event.what);
      seconds.push_back(each != nullptr ? static_cast<double>(each->flops) : 0);
    }
  }
  return simulate(make_schedule(trace, all_seconds, {}, "file"), repetitions, costs, "file");
}

TEST(Simulation, WaitsForTheSlower) {
  const auto ranks =
      simulated(of_two({operation(1), exchange(0, 0), wait(0)}, {operation(4), exchange(0, 1), wait(0)}))
          .ranks;
  EXPECT_DOUBLE_EQ(ranks[0].end, 6.5);
  EXPECT_DOUBLE_EQ(ranks[1].end, 6.5);
  EXPECT_DOUBLE_EQ(ranks[0].waiting, 5.5);
  EXPECT_DOUBLE_EQ(ranks[1].waiting, 2.5);
}

TEST(Simulation, HidesMessagesBehindWork) {
  const auto ranks =
      simulated(of_two({exchange(0, 0), operation(2), wait(0)}, {exchange(0, 1), operation(3), wait(0)}))
          .ranks;
  EXPECT_DOUBLE_EQ(ranks[0].end, 2.5);
  EXPECT_DOUBLE_EQ(ranks[1].end, 3);
  EXPECT_DOUBLE_EQ(ranks[1].waiting, 0);
  // Of the 2.5 s that the message takes, those in which the rank computed.
  EXPECT_DOUBLE_EQ(ranks[0].hidden, 2);
  EXPECT_DOUBLE_EQ(ranks[1].hidden, 2.5);
}

// Two messages that a rank posts at once follow each other on its link.
TEST(Simulation, SendsOneMessageAtATime) {
  const auto ranks = simulated(of_two({exchange(0, 0), exchange(1, 0), wait(0), wait(1)},
                                      {exchange(0, 1), exchange(1, 1), wait(0), wait(1)}))
                         .ranks;
  EXPECT_DOUBLE_EQ(ranks[0].end, 4.5);
  EXPECT_DOUBLE_EQ(ranks[0].waiting, 4.5);
}

void expect_causes(const RankTime& time, double launching, double latency, double sending) {
  EXPECT_DOUBLE_EQ(time.launching, launching);
  EXPECT_DOUBLE_EQ(time.latency, latency);
  EXPECT_DOUBLE_EQ(time.sending, sending);
}

// Of each wait, by hand: what the latency, the bytes and the hosts have of it.
TEST(Simulation, TellsWhatRanksWaitFor) {
  const Trace slower =
      of_two({operation(1), exchange(0, 0), wait(0)}, {operation(4), exchange(0, 1), wait(0)});
  expect_causes(simulated(slower).ranks[0], 0, 0.5, 2);  // 3 s more, for the other rank
  expect_causes(simulated(slower).ranks[1], 0, 0.5, 2);
  // Of the second of two messages, what is left when the first is there.
  const Trace two = of_two({exchange(0, 0), exchange(1, 0), wait(0), wait(1)},
                           {exchange(0, 1), exchange(1, 1), wait(0), wait(1)});
  expect_causes(simulated(two).ranks[0], 0, 1, 3.5);
  // Only the second is waited for, which the first delays.
  const Trace last =
      of_two({exchange(0, 0), exchange(1, 0), wait(1)}, {exchange(0, 1), exchange(1, 1), wait(1)});
  expect_causes(simulated(last).ranks[0], 0, 0.5, 4);
  Costs costs = costs_of_toys();
  costs.links.front().launch = 3;
  const Trace message = of_two({exchange(0, 0), wait(0)}, {exchange(0, 1), wait(0)});
  expect_causes(simulated(message, 1, costs).ranks[0], 3, 0.5, 2);
  // Operations of 1 s, each launched in 2 s.
  costs.launch = 2;
  const RankTimeline host = simulated(of_two({operation(1), operation(1)}, {}), 1, costs).ranks[0];
  EXPECT_DOUBLE_EQ(host.end, 5);
  expect_causes(host, 3, 0, 0);
}

// Work between messages counts as one where nobody asks for its spans.
TEST(Simulation, TakesAsLongWithoutSpans) {
  std::mt19937 random(1);
  for (int round = 0; round < 100; ++round) {
    Costs costs = costs_of_toys();
    costs.launch = std::uniform_int_distribution<>(0, 5)(random);
    costs.links.front().launch = std::uniform_int_distribution<>(0, 5)(random);
    costs.links.front().overlap = 0.5;
    std::vector<std::vector<Event>> of_ranks(2);
    for (int64_t own : {0, 1}) {
      for (int64_t step = 0; step < 3; ++step) {
        std::vector<Event>& events = of_ranks[static_cast<size_t>(own)];
        const auto work = [&] {
          for (int i = std::uniform_int_distribution<>(0, 4)(random); i > 0; --i)
            events.push_back(in_step(step, operation(std::uniform_int_distribution<>(0, 6)(random))));
        };
        work();
        events.push_back(in_step(step, exchange(step, own)));
        work();
        events.push_back(in_step(step, wait(step)));
        work();
      }
    }
    Trace trace = of_two(of_ranks[0], of_ranks[1]);
    trace.traced_steps = trace.steps = 3;
    const Simulation with = simulated(trace, 5, costs);
    costs.keeps_spans = false;
    const Simulation without = simulated(trace, 5, costs);
    EXPECT_TRUE(without.ranks[0].spans.empty());
    for (size_t rank = 0; rank < 2; ++rank) {
      EXPECT_NEAR(without.ranks[rank].end, with.ranks[rank].end, 1e-9);
      EXPECT_NEAR(without.ranks[rank].waiting, with.ranks[rank].waiting, 1e-9);
      EXPECT_NEAR(without.ranks[rank].computing, with.ranks[rank].computing, 1e-9);
      EXPECT_NEAR(without.ranks[rank].launching, with.ranks[rank].launching, 1e-9);
      EXPECT_NEAR(without.ranks[rank].hidden, with.ranks[rank].hidden, 1e-9);
    }
  }
}

// To whomever they go, and from whomever they come.
TEST(Simulation, SendsAndReceivesOneMessageAtATime) {
  for (const bool sends : {true, false}) {
    Trace trace{.model = {}, .settings = Json::object(), .world_size = 3, .ranks = {}};
    trace.ranks = {{.rank = 0, .events = {single(0, sends, 1), single(1, sends, 2), wait(0), wait(1)}},
                   {.rank = 1, .events = {single(0, !sends, 0), wait(0)}},
                   {.rank = 2, .events = {single(0, !sends, 0), wait(0)}}};
    const auto ranks = simulated(trace).ranks;
    EXPECT_DOUBLE_EQ(ranks[0].end, 4.5) << sends;
    EXPECT_DOUBLE_EQ(std::min(ranks[1].end, ranks[2].end), 2.5) << sends;
    EXPECT_DOUBLE_EQ(std::max(ranks[1].end, ranks[2].end), 4.5) << sends;
  }
}

// What a rank waits for longer hides no other message a second time.
TEST(Simulation, HidesNoMoreThanIsComputed) {
  const auto ranks = simulated(of_two({exchange(0, 0), exchange(1, 0), operation(3), wait(0), wait(1)},
                                      {exchange(0, 1), exchange(1, 1), operation(3), wait(0), wait(1)}))
                         .ranks;
  EXPECT_DOUBLE_EQ(ranks[0].end, 4.5);
  EXPECT_DOUBLE_EQ(ranks[0].hidden, 3);
}

// The step in the middle is done three times; the message that one step leaves for the next is under way
// between all of them.
TEST(Simulation, RepeatsASteadyStep) {
  const auto rank = [&](int64_t own, int64_t flops) {
    return std::vector<Event>{in_step(0, operation(flops)), in_step(0, exchange(0, own)),
                              in_step(1, operation(flops)), in_step(1, exchange(1, own)),
                              in_step(1, wait(0)),          in_step(2, operation(flops)),
                              in_step(2, wait(1))};
  };
  Trace trace = of_two(rank(0, 3), rank(1, 1));
  trace.traced_steps = trace.steps = 3;
  const Simulation once = simulated(trace), thrice = simulated(trace, 3);
  // The message of a step comes 2.5 s after the slower rank is through, while that one computes again.
  EXPECT_DOUBLE_EQ(once.ranks[0].end, 9);
  EXPECT_DOUBLE_EQ(thrice.ranks[0].end, 15);
  EXPECT_DOUBLE_EQ(thrice.ranks[0].hidden, 4 * 2.5);
  EXPECT_DOUBLE_EQ(thrice.ranks[1].computing, 5);
  EXPECT_EQ(thrice.parts.size(), 5U);
  EXPECT_DOUBLE_EQ(thrice.parts.at({.step = 1, .repetition = 2}).end, 12);
}

// A pipeline: the second stage begins with a patch when it is there, while the first works on the next.
TEST(Simulation, PassesSingleMessagesOn) {
  const auto ranks =
      simulated(
          of_two({operation(3), single(0, true, 1), operation(3), single(1, true, 1), wait(0), wait(1)},
                 {single(0, false, 0), single(1, false, 0), wait(0), operation(3), wait(1), operation(3)}))
          .ranks;
  // 3 + 2.5 until the first patch is there; the second, there at 8.5, finds the stage free at that moment.
  EXPECT_DOUBLE_EQ(ranks[1].end, 11.5);
  EXPECT_DOUBLE_EQ(ranks[1].waiting, 5.5);
}

TEST(Simulation, RefusesWhatNeverEnds) {
  const auto refuses = [](const Trace& trace) {
    try {
      simulated(trace);
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
