// What holds for every mapping, over random operators and machines.
#include "plan/hardware/mapping.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "tests/plan/machines.h"

namespace tessera::plan {
namespace {

constexpr double kBytes = 2, kSlack = 1 - 1e-9;

int64_t random_size(std::mt19937& random, int64_t most) {
  return static_cast<int64_t>(
      std::pow(static_cast<double>(most), std::uniform_real_distribution<>(0, 1)(random)));
}

Work random_work(std::mt19937& random) {
  const auto size = [&](int64_t most) { return random_size(random, most); };
  switch (random() % 3) {
    case 0: {
      const int64_t rows = size(20000);
      return VectorWork{rows, size(4000), static_cast<double>(size(8)), size(3), size(4000)};
    }
    case 1:
      return GemmWork{size(20000), size(5000), size(5000), static_cast<double>(random() % 8)};
    default:
      return AttentionWork{size(64), size(24), size(4000), size(4000), size(128)};
  }
}

// The bounds are counted here from the shapes alone.
struct Bounds {
  double gemm_operations = 0, vector_operations = 0, bytes = 0;
};

Bounds bounds_of(const Work& work) {
  const auto real = [](int64_t size) { return static_cast<double>(size); };
  if (const auto* vector = std::get_if<VectorWork>(&work)) {
    const double elements = real(vector->rows) * real(vector->width);
    return {0, elements * vector->operations_per_element,
            kBytes * (elements * real(vector->inputs) + elements + real(vector->weights))};
  }
  if (const auto* gemm = std::get_if<GemmWork>(&work)) {
    const double rows = real(gemm->rows), inner = real(gemm->inner), columns = real(gemm->columns);
    return {2 * rows * inner * columns, rows * columns * gemm->activation_operations,
            kBytes * (rows * inner + inner * columns + rows * columns)};
  }
  const auto& attention = std::get<AttentionWork>(work);
  const double problems = real(attention.batch) * real(attention.heads), queries = real(attention.queries);
  const double keys = real(attention.keys), dim = real(attention.head_dim);
  // Scores and their sum with the values; scale, maximum, subtraction, exponential and sum of each score.
  return {problems * queries * keys * dim * 4, problems * queries * keys * 5,
          kBytes * problems * dim * (2 * queries + 2 * keys)};
}

TEST(Mapping, NoResourceIsFasterThanItCanBe) {
  std::mt19937 random(1);
  int64_t mapped = 0;
  for (int64_t i = 0; i < 4000; ++i) {
    const Machine machine = random_machine(random);
    const Work work = random_work(random);
    const Mapping mapping = map_operator({"op", work}, machine, "bf16");
    if (!mapping.fits()) continue;
    ++mapped;
    const Bounds bounds = bounds_of(work);
    const double compute = bounds.gemm_operations / machine.gemm_rate("bf16") +
                           bounds.vector_operations / machine.vector_rate("bf16");
    const std::string where = fmt::format("{} {} {}", i, shape_text(work), mapping.split);
    EXPECT_GE(mapping.latency, compute * kSlack) << where;
    EXPECT_GE(mapping.compute, compute * kSlack) << where;
    EXPECT_GE(mapping.latency, mapping.compute * kSlack) << where;
    EXPECT_GE(mapping.dram_bytes, bounds.bytes * kSlack) << where;
    EXPECT_GE(mapping.latency, mapping.dram_bytes / machine.dram_bandwidth * kSlack) << where;
    EXPECT_GE(mapping.latency, mapping.noc_bytes / machine.noc_bandwidth * kSlack) << where;
    EXPECT_NEAR(mapping.utilization, compute / mapping.latency, 1e-9) << where;
    EXPECT_TRUE(std::isfinite(mapping.latency) && mapping.utilization <= 1 + 1e-9) << where;
  }
  EXPECT_GT(mapped, 3000);
}

// A search finds nothing worse than the whole operator on one tile, one thing after the other, where that
// fits.
TEST(Mapping, IsNoWorseThanOneTile) {
  std::mt19937 random(2);
  const auto padded = [](int64_t size) { return (size + 15) / 16 * 16; };
  for (int64_t i = 0; i < 1000; ++i) {
    Machine machine = random_machine(random);
    machine.sram_bytes = 1e12;
    const GemmWork work{random_size(random, 2000), random_size(random, 2000), random_size(random, 2000)};
    const GemmWork large{padded(work.rows), padded(work.inner), padded(work.columns)};
    const double one_tile = bounds_of(large).gemm_operations / machine.gemm_rates.at("bf16") +
                            bounds_of(work).bytes / machine.dram_bandwidth + 2 * machine.dram_latency;
    const Mapping mapping = map_gemm(work, machine, "bf16");
    EXPECT_LE(mapping.latency, one_tile * (1 + 1e-9)) << i << " " << mapping.split;
  }
}

// More of anything never makes the best split slower.
TEST(Mapping, MoreIsNeverSlower) {
  std::mt19937 random(3);
  for (int64_t i = 0; i < 1000; ++i) {
    const Machine machine = random_machine(random);
    const Work work = random_work(random);
    const Mapping before = map_operator({"op", work}, machine, "bf16");
    for (int64_t part = 0; part < 5; ++part) {
      Machine better = machine;
      if (part == 0) better.sram_bytes *= 2;
      if (part == 1) better.dram_bandwidth *= 2;
      if (part == 2) better.noc_bandwidth *= 2;
      if (part == 3) better.gemm_rates["bf16"] *= 2;
      if (part == 4) better.vector_rates["bf16"] *= 2;
      const Mapping after = map_operator({"op", work}, better, "bf16");
      if (!before.fits()) continue;
      ASSERT_TRUE(after.fits()) << shape_text(work);
      EXPECT_LE(after.latency, before.latency * (1 + 1e-9))
          << part << " " << shape_text(work) << " " << before.split;
    }
  }
}

// With an SRAM of S elements in all, a product of m x k x n moves at least 2mkn/sqrt(S) - 2S elements
// (arXiv:1702.02017).
TEST(Mapping, ProductsMoveWhatASmallMemoryCosts) {
  std::mt19937 random(4);
  int64_t mapped = 0;
  for (int64_t i = 0; i < 500; ++i) {
    Machine machine = random_machine(random);
    machine.grid_rows = 1 + i % 2;
    machine.grid_columns = 1 + i % 3;
    machine.tiles = machine.grid_rows * machine.grid_columns;
    machine.sram_bytes = 8192 * static_cast<double>(1 + i % 4);
    const GemmWork work{1000 + random_size(random, 2000), 16 + random_size(random, 500),
                        1000 + random_size(random, 2000)};
    const Mapping mapping = map_gemm(work, machine, "bf16");
    if (!mapping.fits()) continue;
    ++mapped;
    const double all = machine.sram_bytes / kBytes * static_cast<double>(machine.tiles);
    const double least = bounds_of(work).gemm_operations / std::sqrt(all) - 2 * all;
    EXPECT_GE(mapping.dram_bytes, kBytes * least) << shape_text(work) << " " << mapping.split;
  }
  EXPECT_GT(mapped, 400);
}

// By hand: four tiles, eight rows of 16 elements. SRAM for all of a tile's rows twice.
TEST(Mapping, OfAVectorOperatorByHand) {
  Machine machine = tx8();
  machine.tiles = 4;
  machine.grid_rows = machine.grid_columns = 2;
  machine.dram_latency = 1e-6;
  machine.dram_bandwidth = 1e9;
  machine.vector_rates["bf16"] = 1e6;
  const VectorWork work{.rows = 8, .width = 16, .operations_per_element = 3};
  // A row a turn: load 4 rows, compute 2 x 48 operations in 96 us while the other 4 rows come and 4 go,
  // store 4.
  const Mapping mapping = map_vector(work, machine, "bf16");
  EXPECT_EQ(mapping.split, "1 rows");
  EXPECT_NEAR(mapping.latency, (4 * 16 * 2 * 1e-9 + 1e-6) + 96e-6 + (4 * 16 * 2 * 1e-9 + 1e-6), 1e-15);
  EXPECT_EQ(mapping.roof, Roof::kCompute);
  EXPECT_NEAR(mapping.dram, 2 * 8 * 16 * 2 * 1e-9, 1e-15);
}

TEST(Mapping, NamesWhatTakesLongest) {
  const Machine machine = tx8();
  const VectorWork work{.rows = 8, .width = 16, .operations_per_element = 3};
  const Cost even{.compute = 1,
                  .dram_bytes = machine.dram_bandwidth,
                  .noc_bytes = machine.noc_bandwidth,
                  .turns = 1 / machine.dram_latency};
  const auto longest = [&](const auto& change) {
    Cost cost = even;
    change(cost);
    return roof_name(make_mapping(cost, "1 rows", work, machine, "bf16").roof);
  };
  EXPECT_EQ(longest([](Cost& cost) { cost.compute *= 2; }), "compute");
  EXPECT_EQ(longest([](Cost& cost) { cost.dram_bytes *= 2; }), "DRAM");
  EXPECT_EQ(longest([](Cost& cost) { cost.noc_bytes *= 2; }), "NoC");
  EXPECT_EQ(longest([](Cost& cost) { cost.turns *= 2; }), "latency");
}

// By hand: one tile, blocks of 16 x 16 scores, twice as many keys; all that is computed is softmax and its
// merging.
TEST(Mapping, CountsTheSoftmaxOfEveryBlock) {
  Machine machine = tx8();
  machine.tiles = machine.grid_rows = machine.grid_columns = 1;
  machine.gemm_rates["bf16"] = 1e30;
  machine.vector_rates["bf16"] = 1e6;
  machine.sram_bytes = 4 * 1024;  // single buffers of 16 x 16 blocks of 16, and not 16 x 32
  const AttentionWork work{.batch = 1, .heads = 1, .queries = 16, .keys = 32, .head_dim = 16};
  const Mapping mapping = map_attention(work, machine, "bf16");
  ASSERT_TRUE(mapping.fits());
  EXPECT_NEAR(mapping.compute, 2 * (5 * 16 * 16 + 2 * 16 * 16) * 1e-6, 1e-12) << mapping.split;
}

// A problem takes 2 KiB for queries, keys, values and results, which another's can stand beside, and 2 KiB
// for sums.
TEST(Mapping, AttentionMovesBesideItsProductsWhereItFitsTwice) {
  Machine machine = tx8();
  machine.tiles = machine.grid_rows = machine.grid_columns = 1;
  machine.dram_bandwidth = 1e9;
  machine.vector_rates["bf16"] = 1e9;
  const AttentionWork work{.batch = 1, .heads = 8, .queries = 16, .keys = 16, .head_dim = 16};
  machine.sram_bytes = 6 * 1024 - 1;
  const Mapping once = map_attention(work, machine, "bf16");
  EXPECT_GE(once.latency, once.compute + once.dram);
  machine.sram_bytes = 6 * 1024;
  const Mapping twice = map_attention(work, machine, "bf16");
  EXPECT_LT(twice.latency, twice.compute + twice.dram);
}

TEST(Mapping, SaysWhatDoesNotFit) {
  Machine machine = tx8();
  machine.sram_bytes = 1024;
  for (const Work& work : {Work(VectorWork{.rows = 8, .width = 4096}), Work(GemmWork{64, 64, 64}),
                           Work(AttentionWork{1, 1, 64, 64, 64})}) {
    const Mapping mapping = map_operator({"op", work}, machine, "bf16");
    EXPECT_FALSE(mapping.fits());
    EXPECT_NE(mapping.obstacle.find("KiB"), std::string::npos) << mapping.obstacle;
  }
}

TEST(Mapping, TileSizesAreTheSmallestForEachNumberOfParts) {
  for (const int64_t granule : {1, 16}) {
    for (int64_t size = 1; size < 700; ++size) {
      std::vector<int64_t> expected;
      for (int64_t tile = granule; tile < size + granule; tile += granule) {
        const bool has_fewer_parts =
            tile == granule || divide_up(size, tile) < divide_up(size, tile - granule);
        if (has_fewer_parts) expected.push_back(tile);
      }
      EXPECT_EQ(tile_sizes(size, granule), expected) << size << " " << granule;
    }
  }
}

}  // namespace
}  // namespace tessera::plan
