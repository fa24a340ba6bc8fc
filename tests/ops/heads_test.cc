#include "ops/heads.h"

#include <gtest/gtest.h>

namespace tessera::ops {
namespace {

struct Case {
  at::ScalarType dtype;
  int64_t samples, tokens, heads, depth;
};

class HeadsTest : public ::testing::TestWithParam<Case> {
 protected:
  at::Tensor draw(int64_t parts = 1) const {
    const Case& c = GetParam();
    return (at::randn({c.samples, c.tokens, parts * c.heads * c.depth}) * 2 + 0.5).to(c.dtype);
  }
  at::Tensor angles() const {
    const at::Tensor all = at::randn({GetParam().tokens, GetParam().depth / 2});
    return at::stack({at::cos(all), at::sin(all)}, 2);
  }
  at::Tensor split(const at::Tensor& x) const {
    return x.to(at::kDouble).unflatten(2, {-1, GetParam().depth});
  }
  static at::Tensor normed(const at::Tensor& x, const at::Tensor& weight) {
    return x / at::sqrt(x.square().mean(-1, true) + 1e-6) * weight;
  }
  // As products of complex numbers.
  static at::Tensor turned(const at::Tensor& x, const at::Tensor& angles,
                           RotaryPairs pairs = RotaryPairs::kAdjacent) {
    const bool halves = pairs == RotaryPairs::kHalves;
    const at::Tensor by_pair = halves ? x.unflatten(3, {2, -1}).transpose(3, 4) : x.unflatten(3, {-1, 2});
    const at::Tensor numbers = at::view_as_complex(by_pair.contiguous());
    const at::Tensor turns = at::view_as_complex(angles.to(at::kDouble).contiguous());
    const at::Tensor result = at::view_as_real(numbers * turns.unsqueeze(1));
    return (halves ? result.transpose(3, 4) : result).flatten(3);
  }
  void expect_near(const at::Tensor& got, const at::Tensor& expected) const {
    const at::ScalarType dtype = GetParam().dtype;
    EXPECT_EQ(got.scalar_type(), dtype);
    EXPECT_TRUE(got.is_contiguous());
    // One rounding to the dtype.
    const double tolerance = dtype == at::kBFloat16 ? 4e-3 : dtype == at::kHalf ? 5e-4 : 2e-6;
    const at::Tensor all = expected.flatten(2);
    EXPECT_LE(((got.to(at::kDouble) - all).abs() / (all.abs() + 1)).max().item<double>(), tolerance);
  }
};

TEST_P(HeadsTest, AreNormedAndRotatedInEitherOrder) {
  const at::Tensor weight = at::randn({GetParam().depth}), table = angles(), x = draw();
  expect_near(prepare_heads(x, {.weight = weight, .epsilon = 1e-6}), normed(split(x), weight));
  expect_near(prepare_heads(x, {.angles = table}), turned(split(x), table));
  expect_near(prepare_heads(x, {.weight = weight, .epsilon = 1e-6, .angles = table}),
              turned(normed(split(x), weight), table));
  expect_near(prepare_heads(x, {.weight = weight, .epsilon = 1e-6, .angles = table, .rotates_first = true}),
              normed(turned(split(x), table), weight));
}

TEST_P(HeadsTest, AreRotatedInHalves) {
  const at::Tensor weight = at::randn({GetParam().depth}), table = angles(), x = draw();
  constexpr RotaryPairs kHalves = RotaryPairs::kHalves;
  expect_near(prepare_heads(x, {.angles = table, .pairs = kHalves}), turned(split(x), table, kHalves));
  expect_near(prepare_heads(x, {.weight = weight, .epsilon = 1e-6, .angles = table, .pairs = kHalves}),
              turned(normed(split(x), weight), table, kHalves));
}

// Queries are a part of the product of queries, keys and values.
TEST_P(HeadsTest, MayBePartsOfAWiderTensor) {
  const at::Tensor wide = draw(3), table = angles();
  const int64_t width = GetParam().heads * GetParam().depth;
  for (int64_t i = 0; i < 3; ++i) {
    const at::Tensor x = wide.narrow(2, i * width, width);
    EXPECT_TRUE(
        at::equal(prepare_heads(x, {.angles = table}), prepare_heads(x.contiguous(), {.angles = table})));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, HeadsTest,
                         ::testing::Values(Case{at::kFloat, 2, 7, 3, 8}, Case{at::kFloat, 1, 40, 16, 72},
                                           Case{at::kBFloat16, 3, 5, 2, 24},
                                           Case{at::kBFloat16, 2, 33, 16, 72}, Case{at::kHalf, 2, 5, 1, 64},
                                           Case{at::kFloat, 1, 3, 2, 2}, Case{at::kFloat, 1, 2, 1, 640}),
                         [](const auto& info) {
                           return fmt::format("{}{}x{}x{}x{}", c10::toString(info.param.dtype),
                                              info.param.samples, info.param.tokens, info.param.heads,
                                              info.param.depth);
                         });

}  // namespace
}  // namespace tessera::ops
