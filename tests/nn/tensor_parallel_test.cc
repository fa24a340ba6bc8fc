// Pairs of layers that ranks divide, against the same on one rank in plain tensors.
#include "nn/tensor_parallel.h"

#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "comm/collectives.h"
#include "tests/support/drawn_weights.h"
#include "tests/support/rank_threads.h"

namespace tessera::nn {
namespace {

// Small whole numbers, whose sums of products are exact also in bf16: results must be equal, whatever the
// order in which ranks add.
at::Tensor whole_numbers(const std::string& /*key*/, at::IntArrayRef shape, at::Generator& generator) {
  return at::randint(-1, 2, shape, generator, at::kFloat);
}

constexpr int64_t kIn = 6, kOut = 5, kHeadDepth = 4;
// Five key heads, each shared by two query heads, beside the columns of a gated feed-forward layer: no number
// of ranks divides either.
constexpr Split kQueries{5, 2 * kHeadDepth}, kKeys{5, kHeadDepth}, kColumns{7, 1};

struct Division {
  int64_t inner, outer;
  at::ScalarType dtype;
};

class PartsOnRanks : public ::testing::TestWithParam<Division> {
 protected:
  // The features of a split that a rank has, counted one unit at a time.
  static at::Tensor own(const at::Tensor& x, const Split& split, int64_t inner_rank, int64_t outer_rank) {
    const Division& way = GetParam();
    const at::Tensor units = at::arange(split.units);
    const at::Tensor over_inner = at::tensor_split(units, way.inner)[static_cast<size_t>(inner_rank)];
    const at::Tensor mine = at::tensor_split(over_inner, way.outer)[static_cast<size_t>(outer_rank)];
    return x.unflatten(-1, {split.units, split.unit}).index_select(-2, mine).flatten(-2);
  }

  static comm::TensorGroups groups_of(comm::World& world) {
    const Division& way = GetParam();
    comm::TensorGroups groups;
    const auto add = [&](comm::Group& group, int64_t begin, int64_t stride, int64_t size, const char* name) {
      std::vector<int64_t> ranks;
      for (int64_t i = 0; i < size; ++i) ranks.push_back(begin + i * stride);
      const comm::Group one = world.group(ranks, name);
      if (std::find(ranks.begin(), ranks.end(), world.rank()) != ranks.end()) group = one;
    };
    for (int64_t i = 0; i < way.outer; ++i) add(groups.inner, i * way.inner, 1, way.inner, "inner");
    for (int64_t i = 0; i < way.inner; ++i) add(groups.outer, i, way.inner, way.outer, "outer");
    for (const comm::Group* group : {&groups.inner, &groups.outer}) comm::connect(*group, at::kCPU);
    return groups;
  }
};

// One product yields queries, keys, and the two halves of a feed-forward layer from one weight; another takes
// what comes of them.
TEST_P(PartsOnRanks, HaveUnitsOfTheirOwn) {
  const Division way = GetParam();
  weights::DrawnWeights numbers(whole_numbers);
  auto generator = at::detail::createCPUGenerator(3);
  const at::Tensor x = at::randint(-1, 2, {2, 3, kIn}, generator, at::kFloat);
  const auto weight = [&](const std::string& layer, int64_t out, int64_t in) {
    return at::linear(x, numbers.stored(layer + ".weight", {out, in}),
                      numbers.stored(layer + ".bias", {out}));
  };
  const at::Tensor q = weight("to_q", kQueries.features(), kIn), k = weight("to_k", kKeys.features(), kIn);
  const std::vector<at::Tensor> gated = weight("mlp", 2 * kColumns.features(), kIn).chunk(2, -1);
  const int64_t inner_features = kQueries.features() + kColumns.features();
  const at::Tensor between = at::concat({q, gated[0]}, -1);
  const at::Tensor expected = at::linear(between, numbers.stored("out.weight", {kOut, inner_features}),
                                         numbers.stored("out.bias", {kOut}));
  comm::run_ranks_as_threads(way.inner * way.outer, [&](comm::World world) {
    const c10::InferenceMode inference_mode;
    const comm::TensorGroups groups = groups_of(world);
    const weights::Scope scope(numbers, {.dtype = way.dtype, .groups = groups});
    const std::vector<ColumnParallel::Layer> layers = {
        {scope / "to_q", kQueries},
        {scope / "to_k", kKeys},
        {scope / "mlp", kColumns, 0, 2 * kColumns.features()},
        {scope / "mlp", kColumns, kColumns.features(), 2 * kColumns.features()}};
    const ColumnParallel in(layers, kIn);
    const RowParallel out(scope / "out", {kQueries, kColumns}, kOut);
    const std::vector<at::Tensor> parts = in.each(x.to(way.dtype));
    const auto expect_own = [&](const at::Tensor& part, const at::Tensor& whole, const Split& split) {
      const at::Tensor share = own(whole, split, groups.inner.rank, groups.outer.rank);
      EXPECT_TRUE(at::equal(part.to(at::kFloat), share)) << "rank " << world.rank();
    };
    ASSERT_EQ(parts.size(), 4U);
    expect_own(parts[0], q, kQueries);
    expect_own(parts[1], k, kKeys);
    expect_own(parts[2], gated[0], kColumns);
    expect_own(parts[3], gated[1], kColumns);
    const at::Tensor result = out(at::concat({parts[0], parts[2]}, -1));
    EXPECT_EQ(result.scalar_type(), way.dtype);
    EXPECT_TRUE(at::equal(result.to(at::kFloat), expected)) << "rank " << world.rank();
    // An activation is applied to sums, after ranks have added them.
    const std::vector<at::Tensor> positive = in.split(in(x.to(way.dtype), ops::Activation::kRelu));
    expect_own(positive[1], at::relu(k), kKeys);
    expect_own(positive[3], at::relu(gated[1]), kColumns);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, PartsOnRanks,
                         ::testing::Values(Division{1, 1, at::kFloat}, Division{2, 1, at::kFloat},
                                           Division{3, 1, at::kFloat}, Division{4, 1, at::kFloat},
                                           Division{1, 2, at::kFloat}, Division{1, 3, at::kFloat},
                                           Division{2, 2, at::kFloat}, Division{1, 1, at::kBFloat16},
                                           Division{2, 1, at::kBFloat16}, Division{3, 1, at::kBFloat16},
                                           Division{4, 1, at::kBFloat16}, Division{1, 3, at::kBFloat16},
                                           Division{2, 2, at::kBFloat16}, Division{3, 2, at::kFloat}),
                         [](const auto& info) {
                           return fmt::format("{}x{}{}", info.param.inner, info.param.outer,
                                              c10::toString(info.param.dtype));
                         });

}  // namespace
}  // namespace tessera::nn
