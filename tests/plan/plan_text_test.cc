// Tests what a plan says of its layouts.
#include <gtest/gtest.h>

#include "plan/planner/planner.h"

namespace tessera::plan {
namespace {

// Whatever costs a layout the most of its request is named: here each of four that take 20 s longer.
TEST(Planner, NamesWhatALayoutLosesBy) {
  const auto planned = [](const char* name, RankTime step, double first, double ends) {
    PlannedLayout layout;
    layout.name = name;
    Prediction& prediction = layout.prediction;
    prediction.steps = 10;
    prediction.step = step;
    prediction.step_seconds = step.computing + step.waiting;
    prediction.denoise = 10 * prediction.step_seconds + first;
    prediction.decode = ends;
    prediction.seconds = prediction.denoise + ends;
    return layout;
  };
  Plan plan;
  plan.best.push_back(planned("best", {.computing = 3, .waiting = 1}, 1, 5));
  plan.obvious.push_back(planned("computes", {.computing = 5, .waiting = 1}, 1, 5));
  plan.obvious.push_back(planned("waits", {.computing = 3, .waiting = 3}, 1, 5));
  plan.obvious.push_back(planned("warms up", {.computing = 2.9, .waiting = 1}, 22, 5));
  plan.obvious.push_back(planned("decodes", {.computing = 3, .waiting = 1}, 1, 25));
  plan.obvious.push_back(planned("launches", {.computing = 3, .waiting = 3, .launching = 2}, 1, 5));
  plan.obvious.push_back(
      planned("sends often", {.computing = 3, .waiting = 3, .latency = 1.5, .sending = 1}, 1, 5));
  plan.obvious.push_back(
      planned("sends", {.computing = 3, .waiting = 3, .latency = 0.5, .sending = 2.5}, 1, 5));
  const std::vector<std::string> sentences = reasons(plan);
  ASSERT_EQ(sentences.size(), 8U);
  const char* const told[] = {"waits 25 % (25 % for each other), and",
                              "its longest rank computes 5.00 s",
                              "its ranks wait 50 % of a step, 50 % for each other",
                              "they add 22.00 s",
                              "it encodes and decodes in 25.00 s, the best in 5.00 s",
                              "its ranks wait 50 % of a step, 33 % for hosts that launch kernels",
                              "its ranks wait 50 % of a step, 25 % for the latency of messages",
                              "its ranks wait 50 % of a step, 42 % for 0.0 KiB that each sends"};
  for (size_t i = 0; i < sentences.size(); ++i)
    EXPECT_NE(sentences[i].find(told[i]), std::string::npos) << sentences[i];
}

// Layouts of one time and memory are one answer; those that differ in either, in devices or in staleness are
// not.
TEST(Planner, ShowsTwinsOnce) {
  std::vector<PlannedLayout> layouts(6);
  for (size_t i = 0; i < layouts.size(); ++i) {
    layouts[i].name = fmt::format("layout {}", i);
    layouts[i].prediction.seconds = 1 + 1e-4 * static_cast<double>(i);
    layouts[i].prediction.peak_bytes = {1000000};
  }
  layouts[1].prediction.peak_bytes = {1100000};
  layouts[3].wish.ulysses_degree = 2;
  layouts[4].prediction.is_exact = false;
  const OrderedJson rows = plan_table(layouts).json();
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0]["layout"], "layout 0 (and 2 more like it)");
  EXPECT_EQ(rows[1]["layout"], "layout 1");
  layouts[5].prediction.seconds = 1.002;
  EXPECT_EQ(plan_table(layouts).json().size(), 5U);
}

// What a busy host has left of a calibration is told wherever times rest on it.
TEST(Planner, TellsOfPoorMeasurements) {
  Machine machine;
  EXPECT_EQ(basis_of(machine), "the rates of a data sheet, which kernels do not reach");
  machine.text = {{"calibration", {{"operations", 63}, {"all_operations", 63}}}};
  EXPECT_EQ(basis_of(machine), "measurements of the machine");
  machine.text["calibration"]["operations"] = 5;
  EXPECT_EQ(basis_of(machine), "poor measurements of the machine, in which 5 of 63 operations had time");
  machine.text["calibration"]["rows"] = Json::array({1, 2});
  EXPECT_EQ(basis_of(machine), "a fit to 2 measured runs");
  for (const char* const other : {"5", "{}", R"({"operations": 5})", "null"}) {
    machine.text["calibration"] = Json::parse(other);
    EXPECT_EQ(basis_of(machine), "measurements of the machine") << other;
  }
}

}  // namespace
}  // namespace tessera::plan
