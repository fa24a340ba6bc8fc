#include "ops/modulate.h"

#include <gtest/gtest.h>

namespace tessera::ops {
namespace {

struct Case {
  at::ScalarType dtype;
  int64_t batch, tokens, width;
};

class ModulateTest : public ::testing::TestWithParam<Case> {
 protected:
  double tolerance() const {
    return GetParam().dtype == at::kFloat ? 2e-6 : GetParam().dtype == at::kHalf ? 1e-3 : 8e-3;
  }
  at::Tensor draw() const {
    return (at::randn({GetParam().batch, GetParam().tokens, GetParam().width}) * 3 + 1).to(GetParam().dtype);
  }
  void expect_near(const at::Tensor& got, const at::Tensor& expected) const {
    EXPECT_EQ(got.scalar_type(), GetParam().dtype);
    EXPECT_LE((got.to(at::kDouble) - expected).abs().max().item<double>(),
              tolerance() * expected.abs().max().item<double>());
  }
};

TEST_P(ModulateTest, NormEqualsTheDefinition) {
  const int64_t width = GetParam().width;
  const at::Tensor x = draw(), scale = at::randn({width}), shift = at::randn({width});
  const at::Tensor wide = x.to(at::kDouble);
  const at::Tensor centred = wide - wide.mean(-1, true);
  const at::Tensor normed = centred / at::sqrt(centred.square().mean(-1, true) + 1e-6);
  expect_near(modulated_layer_norm(x, scale, shift, 1e-6), normed * (1 + scale) + shift);
}

TEST_P(ModulateTest, GateEqualsTheDefinition) {
  at::Tensor x = draw();
  const at::Tensor y = draw(), gate = at::randn({GetParam().width});
  const at::Tensor expected = x.to(at::kDouble) + gate * y.to(at::kDouble);
  add_gated_(x, y, gate);
  expect_near(x, expected);
}

// A vector for each sample, or for each half of its tokens, acts on its part of x as if on that part alone.
TEST_P(ModulateTest, VectorsBelongToSamplesAndGroupsOfTokens) {
  const Case& c = GetParam();
  for (const int64_t groups : {1, 2}) {
    const std::vector<int64_t> shape =
        groups == 1 ? std::vector{c.batch, c.width} : std::vector{c.batch, groups, c.width};
    const at::Tensor x = at::concat({draw(), draw()}, 1), y = at::concat({draw(), draw()}, 1);
    const at::Tensor scale = at::randn(shape), shift = at::randn(shape);
    const at::Tensor normed = modulated_layer_norm(x, scale, shift, 1e-6);
    at::Tensor gated = x.clone();
    add_gated_(gated, y, scale);
    const int64_t length = x.size(1) / groups;
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t group = 0; group < groups; ++group) {
        const auto part = [&](const at::Tensor& all) {
          return all.narrow(0, b, 1).narrow(1, group * length, length).contiguous();
        };
        const auto vector = [&](const at::Tensor& all) {
          return all.view({c.batch, groups, c.width})[b][group];
        };
        EXPECT_TRUE(
            at::equal(part(normed), modulated_layer_norm(part(x), vector(scale), vector(shift), 1e-6)));
        at::Tensor alone = part(x);
        add_gated_(alone, part(y), vector(scale));
        EXPECT_TRUE(at::equal(part(gated), alone));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ModulateTest,
                         ::testing::Values(Case{at::kFloat, 1, 1, 4}, Case{at::kFloat, 2, 37, 1152},
                                           Case{at::kFloat, 3, 5, 33}, Case{at::kBFloat16, 2, 37, 1152},
                                           Case{at::kBFloat16, 1, 9, 7}, Case{at::kHalf, 2, 3, 16}));

// A row without variance gives only the shift; with a small variance epsilon matters as much.
TEST(Modulate, NormOfFlatRowsIsFinite) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor flat = at::full({1, 3, 40}, 2.0, dtype), scale = at::randn({40}),
                     shift = at::randn({40});
    EXPECT_TRUE(
        at::equal(modulated_layer_norm(flat, scale, shift, 1e-6), shift.to(dtype).expand({1, 3, 40})));
  }
  const at::Tensor x = at::randn({1, 5, 64}) * 1e-3;  // variance 1e-6
  const at::Tensor y = modulated_layer_norm(x, at::zeros({64}), at::zeros({64}), 1e-6);
  EXPECT_TRUE(at::allclose(y, at::layer_norm(x, {64}, {}, {}, 1e-6), 1e-4, 1e-5));
}

// As in PyTorch. Other rows are as they were.
TEST(Modulate, NormOfRowsWhoseVarianceOverflowsIsNaN) {
  at::Tensor x = at::randn({1, 3, 40});
  const at::Tensor scale = at::randn({40}), shift = at::randn({40});
  const at::Tensor before = modulated_layer_norm(x, scale, shift, 1e-6);
  x.select(1, 1) *= 1e30;
  const at::Tensor y = modulated_layer_norm(x, scale, shift, 1e-6);
  EXPECT_TRUE(y.select(1, 1).isnan().all().item<bool>());
  EXPECT_TRUE(at::equal(y.select(1, 0), before.select(1, 0)) &&
              at::equal(y.select(1, 2), before.select(1, 2)));
}

// If the mean is large compared with the deviation, a one-pass variance loses all digits.
TEST(Modulate, NormKeepsItsDigitsBesideALargeMean) {
  const at::Tensor noise = at::randn({1, 4, 256});
  const at::Tensor x = noise + 1000.0;
  const at::Tensor zero = at::zeros({256});
  const at::Tensor expected = at::layer_norm(x.to(at::kDouble), {256}, {}, {}, 1e-6);
  EXPECT_LE((modulated_layer_norm(x, zero, zero, 1e-6) - expected).abs().max().item<double>(), 1e-3);
}

}  // namespace
}  // namespace tessera::ops
