#include "serve/estimates.h"

#include <gtest/gtest.h>

namespace tessera::serve {
namespace {

TEST(EstimatesTest, WhatIsNotMeasuredIsScaledFromOthers) {
  Estimates estimates;
  EXPECT_GT(estimates.run("a", 1e6, 10), Seconds(0));
  estimates.add_step("a", 100, Seconds(2));
  EXPECT_EQ(estimates.step("a", 100), Seconds(2));
  EXPECT_EQ(estimates.step("a", 200), Seconds(4));
  EXPECT_EQ(estimates.step("b", 50), Seconds(1));
  estimates.add_step("b", 50, Seconds(3));
  EXPECT_EQ(estimates.step("b", 50), Seconds(3));
  EXPECT_EQ(estimates.step("a", 100), Seconds(2));
}

TEST(EstimatesTest, LaterMeasurementsCountMore) {
  Estimates estimates;
  for (int i = 0; i < 100; ++i) estimates.add_step("a", 1, Seconds(1));
  for (int i = 0; i < 8; ++i) estimates.add_step("a", 1, Seconds(2));
  EXPECT_GT(estimates.step("a", 1), Seconds(1.8));
  EXPECT_LT(estimates.step("a", 1), Seconds(2));
}

TEST(EstimatesTest, ARunIsItsStepsAndTheRest) {
  Estimates estimates;
  estimates.add_step("a", 100, Seconds(2));
  EXPECT_EQ(estimates.run("a", 100, 10), Seconds(22));  // as if the rest took a step
  estimates.add_rest("a", 100, Seconds(5));
  EXPECT_EQ(estimates.run("a", 100, 10), Seconds(25));
}

}  // namespace
}  // namespace tessera::serve
