#include "plan/hardware/stdit_pair.h"

#include <gtest/gtest.h>

#include <map>

#include "plan/hardware/analysis.h"
#include "tests/plan/machines.h"

namespace tessera::plan {
namespace {

TEST(StditPair, TokensOfPublishedSizes) {
  struct Case {
    Video video;
    int64_t frames, of_frame;
  };
  for (const Case& each :
       {Case{{51, 240, 426}, 15, 405}, Case{{204, 360, 640}, 60, 920}, Case{{51, 720, 1280}, 15, 3600},
        Case{{408, 360, 640}, 120, 920}, Case{{102, 720, 1280}, 30, 3600}, Case{{51, 480, 854}, 15, 1590}}) {
    const TokenGrid grid = token_grid(each.video);
    EXPECT_EQ(grid.frames, each.frames);
    EXPECT_EQ(grid.of_frame(), each.of_frame);
  }
  for (const auto& [frames, latent] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {52, 16}, {60, 18}, {64, 19}})
    EXPECT_EQ(token_grid({frames, 240, 426}).frames, latent);
}

TEST(StditPair, SizesOfAPublishedTrace) {
  const Video video{51, 240, 426, 2};
  const StditSizes sizes = stdit_xl_sizes(video, token_grid(video), 1);
  EXPECT_EQ(sizes.spatial.rows(), 12150);
  EXPECT_EQ(sizes.spatial.batch, 30);
  EXPECT_EQ(sizes.spatial.queries, 405);
  EXPECT_EQ(sizes.temporal.batch, 810);
  EXPECT_EQ(sizes.temporal.queries, 15);
  EXPECT_EQ(sizes.cross.batch, 2);
  EXPECT_EQ(sizes.cross.queries, 6075);
  EXPECT_EQ(sizes.cross.keys, 300);
  EXPECT_EQ(sizes.hidden, 1152);
  EXPECT_EQ(sizes.heads, 16);
  EXPECT_EQ(sizes.head_dim, 72);
  EXPECT_EQ(sizes.up_output, 4608);
  EXPECT_EQ(sizes.pairs, 28);
}

// (56 B N + 8 B TOKEN) h^2 + 4 B N h (S + T + 2 TOKEN), with N = T S.
TEST(StditPair, ProductsAreThoseOfTheFormula) {
  for (const Video& video : {Video{204, 360, 640, 2}, Video{51, 720, 1280, 1}}) {
    const TokenGrid grid = token_grid(video);
    double operations = 0;
    for (const Operator& each : stdit_pair(stdit_xl_sizes(video, grid, 1)))
      operations += demand_of(each.work).gemm_operations * static_cast<double>(each.count);
    const auto b = static_cast<double>(video.batch), n = static_cast<double>(grid.tokens());
    const auto s = static_cast<double>(grid.of_frame()), t = static_cast<double>(grid.frames);
    const double h = 1152, token = 300;
    const double expected = (56 * b * n + 8 * b * token) * h * h + 4 * b * n * h * (s + t + 2 * token);
    EXPECT_NEAR(operations / expected, 1, 1e-12);
  }
}

// Rotary positions are along frames alone.
TEST(StditPair, HasEveryOperator) {
  const Video video{204, 360, 640, 2};
  std::map<std::string, int64_t> counts;
  for (const Operator& each : stdit_pair(stdit_xl_sizes(video, token_grid(video), 1)))
    counts[each.name] += each.count;
  for (const char* const name :
       {"spatial_o_proj", "temporal_o_proj", "spatial_q_norm", "temporal_k_norm", "temporal_q_rope"})
    EXPECT_EQ(counts[name], 1) << name;
  for (const char* const name : {"cross_o_proj", "cross_residual", "mlp_norm"})
    EXPECT_EQ(counts[name], 2) << name;
  EXPECT_FALSE(counts.contains("spatial_q_rope"));
}

// The table of docs/video.md, whose bytes were counted in runs: 13.35 MiB for two ranks, 10.01 for four.
TEST(StditPair, ExchangesAreThoseThatRunsCount) {
  const Video video{51, 240, 426, 2};
  const TokenGrid grid = token_grid(video);
  EXPECT_NEAR(exchanged_bytes(video, grid, 2, 2) / (1 << 20), 13.35, 0.005);
  EXPECT_NEAR(exchanged_bytes(video, grid, 4, 2) / (1 << 20), 10.01, 0.005);
  EXPECT_EQ(exchanged_bytes(video, grid, 1, 2), 0);
}

TEST(StditPair, TheBusiestDieHasItsShare) {
  const Video video{51, 240, 426, 2};
  const StditSizes sizes = stdit_xl_sizes(video, token_grid(video), 4);
  EXPECT_EQ(sizes.spatial.batch, 2 * 4);     // of 15 frames
  EXPECT_EQ(sizes.temporal.batch, 2 * 102);  // of 405 positions
  EXPECT_EQ(sizes.cross.queries, 4 * 405);
}

TEST(Analysis, AddsUpOperatorsAndExchanges) {
  const VectorWork norm{.rows = 100, .width = 64, .operations_per_element = 4};
  const GemmWork product{128, 128, 128};
  const VectorWork huge{.rows = 1, .width = int64_t{1} << 40};
  const std::string dtype = "bf16";
  const Exchange exchange{.bytes = 3e9, .messages = 2, .bandwidth = 1e9, .latency = 0.25};
  const Analysis analysis =
      analyze({{"a", norm, 2}, {"b", product}, {"c", norm}, {"d", huge}}, tx8(), dtype, exchange);
  const double expected =
      3 * map_vector(norm, tx8(), dtype).latency + map_gemm(product, tx8(), dtype).latency;
  EXPECT_NEAR(analysis.list_seconds, expected, 1e-15);
  EXPECT_DOUBLE_EQ(analysis.exchange_seconds, 3.5);
  EXPECT_DOUBLE_EQ(analysis.total(10), 10 * (analysis.list_seconds + 3.5));
  EXPECT_EQ(analysis.obstacles, std::vector<std::string>{"d"});
}

}  // namespace
}  // namespace tessera::plan
