#include "nn/rotary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>

#include "nn/tokens.h"

namespace tessera::nn {
namespace {

using parallel::GridAxis;

// The features of an axis are rotated by position / theta^(2 i / features), as complex numbers in fp64. x [B,
// n, H * D], positions [n, A].
at::Tensor rotated_naively(const at::Tensor& x, const at::Tensor& positions,
                           const std::vector<RotaryAxis>& axes, RotaryPairs pairs) {
  int64_t depth = 0;
  for (const RotaryAxis& axis : axes) depth += axis.features;
  const at::Tensor from = x.to(at::kDouble).contiguous(), to = at::empty_like(from);
  const double* in = from.const_data_ptr<double>();
  double* out = to.mutable_data_ptr<double>();
  for (int64_t head = 0; head < x.numel() / depth; ++head, in += depth, out += depth) {
    const int64_t token = head / (x.size(2) / depth) % x.size(1);
    int64_t pair = 0;
    for (size_t a = 0; a < axes.size(); ++a) {
      const double position = positions[token][static_cast<int64_t>(a)].item<double>();
      for (int64_t i = 0; i < axes[a].features / 2; ++i, ++pair) {
        const double angle = position / std::pow(axes[a].theta, 2.0 * static_cast<double>(i) /
                                                                    static_cast<double>(axes[a].features));
        const int64_t first = pairs == RotaryPairs::kHalves ? pair : 2 * pair;
        const int64_t second = pairs == RotaryPairs::kHalves ? depth / 2 + pair : first + 1;
        const auto turned = std::complex(in[first], in[second]) * std::polar(1.0, angle);
        out[first] = turned.real();
        out[second] = turned.imag();
      }
    }
  }
  return to;
}

struct RotaryCase {
  at::ScalarType dtype;
  std::vector<RotaryAxis> axes;  // of the frame, the row and the column
  std::array<double, 3> first;
  RotaryPairs pairs;
};

class RotaryTest : public ::testing::TestWithParam<RotaryCase> {};

// A text, all of whose tokens have one position on all axes but the last, and a grid that begins anywhere.
TEST_P(RotaryTest, TurnsPairsByThePositionsOfTheirToken) {
  const RotaryCase& c = GetParam();
  const at::Tensor text = at::tensor({-3.0, 7.0, 0.0, -3.0, 7.0, 0.5, -3.0, 7.0, 4000.0}).view({3, 3});
  const at::Tensor positions = at::concat({text, grid_positions({2, 3, 5}, c.first)});
  const at::Tensor place = at::arange(30);
  EXPECT_TRUE(at::equal(
      positions.slice(0, 3),
      at::stack({place.div(15, "floor"), place.remainder(15).div(5, "floor"), place.remainder(5)}, 1)
              .to(at::kDouble) +
          at::tensor(at::ArrayRef<double>(c.first))));
  int64_t depth = 0;
  for (const RotaryAxis& axis : c.axes) depth += axis.features;
  const at::Tensor x = at::randn({2, positions.size(0), 3 * depth}).to(c.dtype);
  const at::Tensor turned = rotate(x, rotary_table(positions, c.axes), c.pairs);
  EXPECT_EQ(turned.scalar_type(), c.dtype);
  const double tolerance = c.dtype == at::kBFloat16 ? 4e-3 : c.dtype == at::kHalf ? 5e-4 : 2e-6;
  const at::Tensor expected = rotated_naively(x, positions, c.axes, c.pairs);
  EXPECT_LE(((turned.to(at::kDouble) - expected).abs() / (expected.abs() + 1)).max().item<double>(),
            tolerance);
}

// What ranks and patches select of the table are the tables of their positions, bit by bit.
TEST_P(RotaryTest, OfLocalTokensIsThatOfTheWhole) {
  const RotaryCase& c = GetParam();
  const parallel::Grid grid{6, 7, 5};
  const at::Tensor positions = grid_positions(grid, c.first), whole = rotary_table(positions, c.axes);
  const at::Tensor text = at::randn({11, 3}, at::kDouble);
  for (const GridAxis patch_axis : {GridAxis::kFrames, GridAxis::kRows}) {
    for (const GridAxis rank_axis : {GridAxis::kFrames, GridAxis::kRows}) {
      for (const auto& [patches, ranks] : {std::pair{1, 1}, {1, 3}, {2, 1}, {3, 2}}) {
        for (int64_t rank = 0; rank < ranks; ++rank) {
          TokenGroups groups;
          groups.ring = groups.all = {.rank = rank, .size = ranks};
          Tokens tokens(parallel::Cut(grid, patch_axis, patches, rank_axis, ranks), groups);
          EXPECT_TRUE(at::equal(rotary_table(tokens.local_other(text, 0), c.axes),
                                tokens.local_other(rotary_table(text, c.axes), 0)));
          for (int64_t patch = 0; patch < patches; ++patch) {
            tokens.enter({patch, 1});
            const at::Tensor own = tokens.local(positions, 0);
            EXPECT_EQ(own.size(0), tokens.held().tokens());
            EXPECT_TRUE(at::equal(rotary_table(own, c.axes), tokens.local(whole, 0)));
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Axes, RotaryTest,
    ::testing::Values(
        RotaryCase{at::kFloat, {{2, 100}, {4, 100}, {6, 100}}, {}, RotaryPairs::kAdjacent},
        RotaryCase{at::kFloat, {{16, 256}, {56, 256}, {56, 256}}, {33, 0, 0}, RotaryPairs::kAdjacent},
        RotaryCase{at::kBFloat16, {{16}, {56}, {56}}, {0, -2, -3}, RotaryPairs::kAdjacent},
        RotaryCase{at::kHalf, {{0}, {4, 50}, {8, 2000}}, {0, 1.5, -64}, RotaryPairs::kAdjacent},
        RotaryCase{at::kFloat, {{0}, {0}, {12, 1e6}}, {0, 0, 5}, RotaryPairs::kHalves},
        RotaryCase{at::kBFloat16, {{16}, {24, 300}, {24, 4000}}, {-7, 20, 0}, RotaryPairs::kHalves}));

// The axes are any number, and positions of any dtype.
TEST(Rotary, HasAsManyAxesAsItsPositions) {
  const std::vector<RotaryAxis> axes = {{4, 2000}, {4, 2000}, {8, 2000}, {2, 2000}, {6, 7}};
  const at::Tensor positions = at::randint(-9, 9, {5, 5}, at::kLong), x = at::randn({1, 5, 24});
  EXPECT_TRUE(at::allclose(rotate(x, rotary_table(positions, axes)).to(at::kDouble),
                           rotated_naively(x, positions, axes, RotaryPairs::kAdjacent), 1e-5, 1e-5));
}

// Models that were trained with angles in fp32 have rounding errors of their own at large positions.
TEST(Rotary, RoundsWhereTheModelDoes) {
  const at::Tensor positions = at::arange(4096).unsqueeze(1);
  const auto table = [&](const RotaryRounding& rounding) {
    return rotary_table(positions, {{56}}, at::kCPU, rounding);
  };
  const auto polar = [](const at::Tensor& angles) {
    return at::stack({at::cos(angles), at::sin(angles)}, 2).to(at::kFloat);
  };
  const auto frequency = [](at::ScalarType dtype) {
    return 1 / at::pow(at::scalar_tensor(10000.0, dtype), at::arange(0, 56, 2, dtype) / 56);
  };
  const at::Tensor place = positions.select(1, 0);
  const at::Tensor wide = at::outer(place.to(at::kDouble), frequency(at::kDouble));
  EXPECT_TRUE(at::equal(table({}), polar(wide)));
  EXPECT_TRUE(at::equal(table({.angles = at::kFloat}), polar(wide.to(at::kFloat))));
  EXPECT_TRUE(at::equal(table({.frequencies = at::kFloat, .angles = at::kFloat}),
                        polar(at::outer(place.to(at::kFloat), frequency(at::kFloat)))));
}

}  // namespace
}  // namespace tessera::nn
