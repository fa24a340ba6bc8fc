#include "ops/group_norm.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tests/support/golden.h"

namespace tessera::ops {
namespace {

struct Case {
  int64_t batch, channels, groups, height, width;
  double mean, deviation;
};

class GroupNormTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const Case& c = GetParam();
    at::manual_seed(1);
    x_ = (at::randn({c.batch, c.channels, c.height, c.width}) * c.deviation + c.mean)
             .contiguous(at::MemoryFormat::ChannelsLast);
    weight_ = at::randn({c.channels});
    bias_ = at::randn({c.channels});
  }
  at::Tensor reference(const at::Tensor& x, bool silu) {
    const at::Tensor y = at::group_norm(x.to(at::kDouble).contiguous(), GetParam().groups,
                                        weight_.to(at::kDouble), bias_.to(at::kDouble), 1e-6);
    return silu ? at::silu(y) : y;
  }
  GroupNorm norm(Activation activation = Activation::kNone) {
    return {weight_, bias_, GetParam().groups, 1e-6, activation};
  }
  GroupNorm with_silu() { return norm(Activation::kSilu); }

  at::Tensor x_, weight_, bias_;
};

TEST_P(GroupNormTest, Fp32EqualsDoublePrecision) {
  // A value of x is itself rounded, and so is its difference from a mean of many deviations.
  const Case& c = GetParam();
  const double tolerance = 2e-6 + 2e-7 * std::abs(c.mean) / c.deviation;
  EXPECT_LE(relative_error(norm()(x_), reference(x_, false)), tolerance);
  EXPECT_LE(relative_error(with_silu()(x_), reference(x_, true)), tolerance);
  const at::Tensor in_place = x_.clone();
  const GroupNorm in_steps = with_silu();
  in_steps.apply_into(in_place, in_steps.maps(in_steps.moments(x_)), in_place);
  EXPECT_TRUE(at::equal(in_place, in_steps(x_)));
}

// The offset that is first added to each channel, such as the step's embedding in a U-Net, is never written
// to memory.
TEST_P(GroupNormTest, AddsAnOffsetOnTheWay) {
  const Case& c = GetParam();
  const at::Tensor offset = at::randn({c.batch, c.channels}) * c.deviation;
  const at::Tensor moved = x_ + offset.unsqueeze(-1).unsqueeze(-1);
  const GroupNorm steps = with_silu();
  const at::Tensor y = steps.apply(steps.maps(steps.moments(x_, offset), offset), x_);
  // Here the sum is rounded as well, to fp32.
  EXPECT_LE(relative_error(y, reference(moved, true)), 4e-6 + 4e-7 * std::abs(c.mean) / c.deviation);
}

TEST_P(GroupNormTest, IsNoFartherFromTheTruthThanAten) {
  const at::Tensor truth = reference(x_, false);
  const at::Tensor aten = at::group_norm(x_, GetParam().groups, weight_, bias_, 1e-6);
  EXPECT_LE(relative_error(norm()(x_), truth), 1.5 * relative_error(aten, truth) + 2e-7);
}

TEST_P(GroupNormTest, Bf16IsTheRoundedTruth) {
  const at::Tensor x = x_.to(at::kBFloat16);
  const at::Tensor truth = reference(x, true);
  const at::Tensor y = with_silu()(x);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  // The error is half a unit in the last of 8 bits, plus the rounding in fp32 before.
  EXPECT_TRUE(
      at::allclose(y.to(at::kDouble), truth, 1.0 / 256 + 1e-4, 1e-5 * truth.abs().max().item<double>()));
}

TEST_P(GroupNormTest, ThreadsDoNotChangeTheResult) {
  const at::Tensor one = with_silu()(x_);
  at::set_num_threads(3);
  const at::Tensor three = with_silu()(x_);
  at::set_num_threads(1);
  EXPECT_LE(relative_error(three, one), 1e-6);
}

// Other groups are as they were.
TEST(GroupNorm, GroupsWhoseVarianceOverflowsAreNaN) {
  const GroupNorm norm{at::ones({4}), at::zeros({4}), 2, 1e-6, Activation::kNone};
  at::Tensor x = at::randn({1, 4, 9, 9}).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor before = norm(x);
  x.narrow(1, 2, 2) *= 1e30;
  const at::Tensor y = norm(x);
  EXPECT_TRUE(y.narrow(1, 2, 2).isnan().all().item<bool>());
  EXPECT_TRUE(at::equal(y.narrow(1, 0, 2), before.narrow(1, 0, 2)));
}

INSTANTIATE_TEST_SUITE_P(Shapes, GroupNormTest,
                         ::testing::Values(Case{1, 32, 8, 16, 16, 0, 1}, Case{2, 12, 4, 5, 9, 0.3, 2},
                                           Case{3, 7, 7, 11, 13, -2, 0.5}, Case{2, 9, 1, 1, 3, 0, 1},
                                           Case{1, 5, 1, 37, 41, 100, 0.1}, Case{1, 64, 32, 63, 65, -1000, 1},
                                           Case{1, 96, 3, 130, 127, 1e-4, 1e-3}));

}  // namespace
}  // namespace tessera::ops
