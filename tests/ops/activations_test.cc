#include "ops/activations.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "tests/support/golden.h"

namespace tessera::ops {
namespace {

at::Tensor exact(const at::Tensor& x, const at::Tensor& gate) {
  return x.to(at::kDouble) * at::gelu(gate.to(at::kDouble));
}

class GatedGelu : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(GatedGelu, IsRoundedOnce) {
  at::manual_seed(3);
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{3, 5}, {2, 7, 33}, {1, 1, 1}, {2, 300, 160}, {0, 4}}) {
    std::vector<int64_t> both = shape;
    both.back() *= 2;
    const int64_t width = shape.back();
    const at::Tensor product = (at::randn(both) * 3).to(GetParam());
    const at::Tensor x = product.narrow(-1, 0, width), gate = product.narrow(-1, width, width);
    const at::Tensor y = gated_gelu(x, gate), truth = exact(x, gate);
    ASSERT_EQ(y.sizes(), x.sizes());
    ASSERT_EQ(y.scalar_type(), GetParam());
    if (y.numel() == 0) continue;
    // In half precision the tolerance allows for ATen, which rounds twice, also for numbers below 2^-14.
    const double unit = GetParam() == at::kFloat ? 2e-7 : GetParam() == at::kHalf ? 2.0 / 1024 : 1.0 / 256;
    const double least = GetParam() == at::kHalf ? 1e-6 : 0;
    const at::Tensor error = (y.to(at::kDouble) - truth).abs(), scale = (x * gate).abs().to(at::kDouble);
    EXPECT_TRUE((error <= unit * truth.abs() + 2.5e-7 * scale + least).all().item<bool>())
        << fmt::format("{}", fmt::join(shape, " x "));
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GatedGelu, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

TEST(GatedGelu, OfEveryGate) {
  const at::Tensor gate = at::linspace(-12, 12, 100001, at::kFloat), one = at::ones_like(gate);
  EXPECT_LE((gated_gelu(one, gate).to(at::kDouble) - exact(one, gate)).abs().max().item<double>(), 8e-7);
  // For large values the result is zero or the gate itself, and NaN stays NaN.
  const at::Tensor far = at::tensor({-1e30, -50.0, 50.0, 1e30, 0.0}, at::kFloat);
  EXPECT_TRUE(
      at::equal(gated_gelu(at::ones_like(far), far), at::tensor({-0.0, -0.0, 50.0, 1e30, 0.0}, at::kFloat)));
  const at::Tensor odd = at::tensor({NAN, INFINITY}, at::kFloat);
  const at::Tensor out = gated_gelu(at::ones_like(odd), odd);
  EXPECT_TRUE(std::isnan(out[0].item<float>()));
  EXPECT_EQ(out[1].item<float>(), INFINITY);
}

TEST(QuickGelu, IsTheFormula) {
  const at::Tensor x = at::linspace(-8, 8, 1001, at::kFloat), wide = x.to(at::kDouble);
  EXPECT_LE(relative_error(quick_gelu(x), wide / (1 + (-1.702 * wide).exp())), 1e-6);
}

}  // namespace
}  // namespace tessera::ops
