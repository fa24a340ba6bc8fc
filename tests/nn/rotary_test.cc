#include "nn/rotary.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace tessera::nn {
namespace {

// Each pair of features of each head is rotated by coordinate / theta^(2 i / features of the axis).
TEST(Rotary, TurnsPairsByThePlaceOfTheirToken) {
  const parallel::Grid grid{2, 3, 5};
  const RotaryAxes axes{.frames = 2, .rows = 4, .columns = 6, .theta = 100};
  constexpr int64_t kHeads = 2, kDepth = 12;
  const at::Tensor x = at::randn({2, grid.tokens(), kHeads * kDepth});
  const at::Tensor turned = rotate(x, rotary_table(grid, axes));
  const std::array<int64_t, 3> features = {2, 4, 6};
  for (int64_t token = 0; token < grid.tokens(); ++token) {
    const std::array<int64_t, 3> place = {token / 15, token % 15 / 5, token % 5};
    int64_t pair = 0;
    for (size_t axis = 0; axis < 3; ++axis) {
      for (int64_t i = 0; i < features[axis] / 2; ++i, ++pair) {
        const double angle =
            static_cast<double>(place[axis]) /
            std::pow(100.0, 2.0 * static_cast<double>(i) / static_cast<double>(features[axis]));
        for (int64_t head = 0; head < kHeads; ++head) {
          const auto value = [&](const at::Tensor& all, int64_t odd) {
            return all[1][token][head * kDepth + 2 * pair + odd].item<double>();
          };
          const double a = value(x, 0), b = value(x, 1);
          EXPECT_NEAR(value(turned, 0), a * std::cos(angle) - b * std::sin(angle), 1e-5);
          EXPECT_NEAR(value(turned, 1), a * std::sin(angle) + b * std::cos(angle), 1e-5);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::nn
