// The published figures of the machine tx8, to the digits that were published or follow from them.
#include "plan/hardware/published.h"

#include <gtest/gtest.h>

#include "tests/plan/machines.h"

namespace tessera::plan {
namespace {

constexpr double kGibi = 1 << 30;

MapOptions published(bool preset = false) {
  return {.dtype = "bf16", .as_published = true, .preset = preset};
}

TEST(Published, VectorOperators) {
  VectorWork work{
      .rows = 2 * 55200, .width = 1152, .sequence = 55200, .operations_per_element = 4, .reduces = true};
  EXPECT_NEAR(demand_of(work).vector_operations / kGibi, 0.473785, 5e-7);
  Mapping mapping = map_operator({"RMSNorm", work}, tx8(), published());
  EXPECT_EQ(mapping.split, "2760 parts");
  EXPECT_NEAR(mapping.latency, 2.467122e-3, 5e-10);
  EXPECT_NEAR(mapping.utilization, 0.192596, 5e-7);

  work.operations_per_element = 2;
  work.reduces = false;
  EXPECT_NEAR(demand_of(work).vector_operations / kGibi, 0.236893, 5e-7);
  mapping = map_operator({"Modulate", work}, tx8(), published());
  EXPECT_EQ(mapping.split, "2484 parts");
  EXPECT_NEAR(mapping.latency, 2.470451e-3, 5e-10);
  EXPECT_NEAR(mapping.utilization, 0.096354, 5e-7);
}

TEST(Published, Attention) {
  const AttentionWork work{
      .batch = 120, .heads = 1, .queries = 920, .keys = 920, .head_dim = 72, .rotary = true};
  const Mapping mapping = map_operator({"attention", work}, tx8(), published());
  EXPECT_EQ(mapping.split, "4 queries x 1 keys");
  EXPECT_NEAR(mapping.latency, 0.277567e-3, 5e-10);
  EXPECT_NEAR(mapping.utilization, 0.906020, 5e-7);
}

// A product of 4096 x 4096 x 4096 has the parts of the published vectors: 2 MiB of input and 0.25 MiB of
// weight are 256 rows and 32 columns.
TEST(Published, Products) {
  const GemmWork work{.rows = 4096, .inner = 4096, .columns = 4096};
  struct Case {
    int64_t rows, columns;
    double latency, utilization;
  };
  for (const Case& each : {Case{256, 32, 1.3628e-3, 0.733783}, Case{128, 32, 1.29915e-3, 0.769734},
                           Case{64, 64, 1.42555e-3, 0.701484}}) {
    const auto mapping = published_gemm(work, each.rows, each.columns, true, tx8(), published());
    ASSERT_TRUE(mapping);
    EXPECT_NEAR(mapping->latency, each.latency, 5e-9);
    EXPECT_NEAR(mapping->utilization, each.utilization, 5e-7);
  }
  EXPECT_NEAR(map_operator({"q_proj", work}, tx8(), published(true)).latency, 1.3628e-3, 5e-9);
  // The search looks at those and more.
  EXPECT_LE(map_operator({"q_proj", work}, tx8(), published()).latency, 1.29915e-3 + 5e-9);
}

TEST(Published, WhatFitsInNoWay) {
  // A norm along 60 latent frames of 1840 positions: the sequence has too few parts.
  const VectorWork norm{
      .rows = 1840 * 60, .width = 1152, .sequence = 60, .operations_per_element = 4, .reduces = true};
  EXPECT_FALSE(map_operator({"norm", norm}, tx8(), published()).fits());
  EXPECT_TRUE(map_operator({"norm", norm}, tx8(), {.dtype = "bf16"}).fits());
  // Blocks of 256 are more than a sixteenth of 920.
  const AttentionWork attention{.batch = 120, .heads = 16, .queries = 920, .keys = 920, .head_dim = 72};
  EXPECT_FALSE(map_operator({"attention", attention}, tx8(), published(true)).fits());
}

// These formulas promise less than the DRAM needs: the default must not.
TEST(Published, BreaksTheRoofThatTheDefaultKeeps) {
  const VectorWork work{
      .rows = 2 * 55200, .width = 1152, .sequence = 55200, .operations_per_element = 2, .reduces = false};
  const double roof = demand_of(work).elements * 2 / tx8().dram_bandwidth;
  EXPECT_LT(map_operator({"modulate", work}, tx8(), published()).latency, roof);
  EXPECT_GE(map_operator({"modulate", work}, tx8(), {.dtype = "bf16"}).latency, roof);
}

}  // namespace
}  // namespace tessera::plan
