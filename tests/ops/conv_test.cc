#include "ops/conv.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tests/support/checkpoint_fixture.h"
#include "tests/support/golden.h"
#include "tests/support/peak_memory.h"

namespace tessera::ops {
namespace {

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;

struct Case {
  int64_t batch, in, out, height, width, kernel, stride, padding;
};

class ConvTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const Case& c = GetParam();
    at::manual_seed(2);
    x_ = at::randn({c.batch, c.in, c.height, c.width});
    weight_ = at::randn({c.out, c.in, c.kernel, c.kernel}) / std::sqrt(static_cast<double>(c.in * c.kernel));
    bias_ = at::randn({c.out});
  }
  at::Tensor reference(at::ScalarType rounded_to) {
    const auto wide = [&](const at::Tensor& t) { return t.to(rounded_to).to(at::kDouble); };
    const Case& c = GetParam();
    return at::conv2d(wide(x_), wide(weight_), wide(bias_), c.stride, c.padding);
  }
  Conv2d conv(at::ScalarType dtype) {
    const Case& c = GetParam();
    const CheckpointFixture file({{"conv.weight", weight_}, {"conv.bias", bias_}});
    return {file.scope(dtype) / "conv", c.in, c.out, c.kernel, c.stride, c.padding};
  }

  at::Tensor x_, weight_, bias_;
};

TEST_P(ConvTest, EqualsAten) {
  const at::Tensor y = conv(at::kFloat)(x_);
  EXPECT_TRUE(y.is_contiguous(kChannelsLast));
  EXPECT_LE(relative_error(y, reference(at::kFloat)), 3e-6);
  // A direct convolution rounds the result to 8 bits; Winograd's also rounds tiles and taps.
  const Conv2d half = conv(at::kBFloat16);
  EXPECT_LE(relative_error(half(x_.to(at::kBFloat16)), reference(at::kBFloat16)),
            half.winograd ? 1.0 / 128 : 1.0 / 256);
}

TEST_P(ConvTest, AddsToATensor) {
  at::Tensor sum = at::randn_like(reference(at::kFloat), at::kFloat).contiguous(kChannelsLast);
  const at::Tensor expected = sum + reference(at::kFloat);
  conv(at::kFloat).add_to(sum, x_);
  EXPECT_LE(relative_error(sum, expected), 3e-6);
}

// Convolves the result of GroupNorm and SiLU, into a new tensor and added to an existing one.
TEST_P(ConvTest, FollowsANorm) {
  const Case& c = GetParam();
  const int64_t groups = c.in % 32 == 0 ? 32 : 1;
  const GroupNorm norm(at::randn({c.in}), at::randn({c.in}), groups, 1e-6, Activation::kSilu);
  const auto input = [&](const at::Tensor& t, const ChannelMaps& maps) {
    return ConvInput{.x = t, .norm = &norm, .maps = &maps};
  };
  const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
  const auto expected = [&](at::ScalarType dtype) {
    const at::Tensor n =
        at::silu(at::group_norm(wide(x_.to(dtype)), groups, wide(norm.weight), wide(norm.bias), 1e-6));
    return at::conv2d(n, wide(weight_.to(dtype)), wide(bias_.to(dtype)), c.stride, c.padding);
  };
  const at::Tensor truth = expected(at::kFloat);
  const at::Tensor x = x_.contiguous(kChannelsLast), before = x.clone();
  const ChannelMaps maps = norm.maps(norm.moments(x));
  EXPECT_LE(relative_error(conv(at::kFloat)(input(x, maps)), truth), 1e-5);
  EXPECT_TRUE(at::equal(x, before));  // the caller still holds x
  at::Tensor sum = at::randn_like(truth, at::kFloat).contiguous(kChannelsLast);
  const at::Tensor total = sum + truth;
  conv(at::kFloat).add_to(sum, input(x, maps));
  EXPECT_LE(relative_error(sum, total), 1e-5);
  const at::Tensor half = x.to(at::kBFloat16);
  const ChannelMaps half_maps = norm.maps(norm.moments(half));
  EXPECT_LE(relative_error(conv(at::kBFloat16)(input(half, half_maps)), expected(at::kBFloat16)), 1.0 / 64);
}

// The input is a part of a picture that is normalised while it is read; some kernels do so in a copy.
TEST_P(ConvTest, InBlocksIsTheSame) {
  const Case& c = GetParam();
  const GroupNorm norm(at::randn({c.in}), at::randn({c.in}), 1, 1e-6, Activation::kSilu);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Conv2d one = conv(dtype);
    const at::Tensor x = x_.to(dtype).contiguous(kChannelsLast);
    const ChannelMaps maps = norm.maps(norm.moments(x));
    const Halo above{at::randn({c.batch, c.in, c.padding, c.width}, dtype).contiguous(kChannelsLast), {}};
    std::vector<std::optional<Halo>> halos = {std::nullopt};
    if (c.padding > 0) halos.emplace_back(above);
    for (const std::optional<Halo>& halo : halos) {
      const auto input = [&](const ConvBlocks& blocks) {
        return ConvInput{.x = x, .norm = &norm, .maps = &maps, .halo = halo, .blocks = blocks};
      };
      const at::Tensor whole = one(input({}));
      for (const ConvBlocks& blocks : {ConvBlocks{.rows = 1}, ConvBlocks{.rows = 3}, ConvBlocks{.rows = 1000},
                                       ConvBlocks{.bytes = 1}, ConvBlocks{.bytes = 4 * c.in * c.width * 4}}) {
        const double tolerance = dtype == at::kFloat ? 1e-6 : 1.0 / 256;
        EXPECT_LE(relative_error(one(input(blocks)), whole), tolerance) << blocks.rows << ' ' << blocks.bytes;
        at::Tensor sum = at::ones_like(whole, kChannelsLast), expected = sum.clone();
        one.add_to(sum, input(blocks));
        one.add_to(expected, input({}));
        EXPECT_LE(relative_error(sum, expected), tolerance) << blocks.rows << ' ' << blocks.bytes;
      }
    }
  }
}

// Besides its output it only needs a copy of the rows that one block reads.
TEST(ConvMemory, IsThatOfABlock) {
  const int64_t channels = 24, size = 200;
  const Conv2d conv(at::randn({channels, channels, 3, 3}), at::randn({channels}), 1, {1, 1});
  const GroupNorm norm(at::ones({channels}), at::zeros({channels}), 1, 1e-6, Activation::kSilu);
  const at::Tensor x = at::randn({1, channels, size, size}).contiguous(kChannelsLast);
  const ChannelMaps maps = norm.maps(norm.moments(x));
  const auto bytes_beside = [&](const ConvBlocks& blocks) {
    const int64_t all = peak_bytes([&] { conv({.x = x, .norm = &norm, .maps = &maps, .blocks = blocks}); });
    return all - static_cast<int64_t>(x.nbytes());  // x is as large as the output
  };
  const int64_t row = channels * size * 4;
  EXPECT_GE(bytes_beside({}), size * row);
  EXPECT_LE(bytes_beside({.rows = 8}), (10 + 8 + 2) * row);  // the copy and its result
  EXPECT_LE(bytes_beside({.bytes = 16 * row}), int64_t{2} * (16 + 2) * row);
}

// A large part of an image is not copied to join it with the rows around it.
TEST(ConvMemory, OfALargePartIsItsInputAndOutput) {
  const int64_t channels = 24, width = 200;
  const Conv2d conv(at::randn({channels, channels, 3, 3}), at::randn({channels}), 1, {1, 1});
  const GroupNorm norm(at::randn({channels}), at::randn({channels}), 1, 1e-6, Activation::kSilu);
  const at::Tensor image = at::randn({2, channels, 500, width}).contiguous(kChannelsLast);
  const ChannelMaps maps = norm.maps(norm.moments(image));
  const at::Tensor normed = norm.apply(maps, image), whole = conv(normed), sum = at::randn_like(whole);
  for (const Range& part : {Range{0, 240}, Range{130, 250}, Range{249, 251}}) {
    const auto rows = [&](const at::Tensor& from, int64_t begin, int64_t length) {
      return from.narrow(2, begin, length).clone(kChannelsLast);
    };
    Halo halo;
    if (part.begin > 0) halo.above = rows(normed, part.begin - 1, 1);
    if (part.end() < 500) halo.below = rows(normed, part.end(), 1);
    const auto input = [&] {
      return ConvInput{.x = rows(image, part.begin, part.length), .norm = &norm, .maps = &maps, .halo = halo};
    };
    const at::Tensor expected = rows(whole, part.begin, part.length);
    const at::Tensor given = rows(sum, part.begin, part.length);
    at::Tensor added = given.clone();
    ConvInput to_convolve = input(), to_add = input();
    at::Tensor y;
    const int64_t row = 2 * channels * width * 4;
    EXPECT_LE(peak_bytes([&] { y = conv(std::move(to_convolve)); }), expected.nbytes() + 12 * row);
    EXPECT_LE(relative_error(y, expected), 3e-6) << part.begin;
    EXPECT_LE(peak_bytes([&] { conv.add_to(added, std::move(to_add)); }), 12 * row);
    EXPECT_LE(relative_error(added, expected + given), 3e-6) << part.begin;
  }
}

TEST(ConvMemory, OfAPointwiseConvolutionIsItsInputs) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t out : {256, 100, 3}) {
      const Conv2d conv(at::randn({out, 256, 1, 1}, dtype) / 16, at::randn({out}, dtype), 1, {0, 0});
      const at::Tensor x =
          at::randn({2, 256, 64, 200}, dtype).contiguous(kChannelsLast);  // several blocks each
      const at::Tensor expected = conv(x), before = x.clone();
      EXPECT_NE(conv.consume(x).data_ptr(), x.data_ptr());  // the caller still holds x
      EXPECT_TRUE(at::equal(x, before));
      at::Tensor own = x.clone();
      const void* const memory = own.data_ptr();
      const at::Tensor y = conv.consume(std::move(own));
      EXPECT_EQ(y.data_ptr(), memory);
      EXPECT_TRUE(y.is_contiguous(kChannelsLast));
      EXPECT_LE(relative_error(y, expected), dtype == at::kFloat ? 1e-6 : 1.0 / 256) << out;
    }
  }
}

TEST_P(ConvTest, ThreadsDoNotChangeTheResult) {
  const Conv2d one = conv(at::kFloat);
  const GroupNorm norm(at::ones({one.in_channels}), at::zeros({one.in_channels}), 1, 1e-6, Activation::kSilu);
  const at::Tensor x = x_.contiguous(kChannelsLast);
  const ChannelMaps maps = norm.maps(norm.moments(x));
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor alone = one({.x = x, .norm = &norm, .maps = &maps});
  at::set_num_threads(3);
  EXPECT_LE(relative_error(one({.x = x, .norm = &norm, .maps = &maps}), alone), 1e-6);
  at::set_num_threads(threads);
}

INSTANTIATE_TEST_SUITE_P(Shapes, ConvTest,
                         ::testing::Values(Case{1, 3, 8, 7, 9, 3, 1, 1}, Case{2, 5, 7, 11, 6, 3, 2, 1},
                                           Case{2, 16, 16, 8, 8, 3, 2, 0}, Case{1, 12, 4, 5, 9, 1, 1, 0},
                                           Case{2, 64, 96, 9, 6, 1, 1, 0}, Case{2, 33, 7, 5, 4, 1, 2, 0},
                                           Case{3, 1, 1, 4, 4, 3, 1, 1}, Case{1, 64, 96, 13, 17, 3, 1, 1},
                                           Case{2, 128, 64, 1, 5, 3, 1, 1}, Case{1, 64, 64, 40, 40, 3, 1, 1},
                                           Case{2, 512, 64, 7, 8, 3, 1, 1}, Case{1, 64, 3, 16, 16, 3, 1, 1},
                                           Case{2, 96, 160, 1, 1, 3, 1, 1}, Case{1, 64, 64, 3, 90, 3, 1, 1},
                                           // In these cases bf16 may be widened in several strips of rows.
                                           Case{1, 256, 3, 70, 300, 3, 1, 1},
                                           Case{1, 256, 4, 150, 200, 3, 2, 1}));

struct Size {
  int64_t batch, channels, height, width;
};

class UpsampleTest : public ::testing::TestWithParam<Size> {
 protected:
  void SetUp() override {
    const auto [batch, channels, height, width] = GetParam();
    at::manual_seed(3);
    x_ = at::randn({batch, channels, height, width}).contiguous(kChannelsLast);
    weight_ = at::randn({channels, channels, 3, 3}) / std::sqrt(9.0 * channels);
    bias_ = at::randn({channels});
  }

  at::Tensor x_, weight_, bias_;
};

TEST_P(UpsampleTest, EqualsNearestThenConvolution) {
  const CheckpointFixture file({{"conv.weight", weight_}, {"conv.bias", bias_}});
  const at::Tensor large = x_.repeat_interleave(2, 2).repeat_interleave(2, 3).to(at::kDouble);
  const at::Tensor expected = at::conv2d(large, weight_.to(at::kDouble), bias_.to(at::kDouble), 1, 1);
  const Upsample2d upsample(file.scope(), x_.size(1));
  EXPECT_LE(relative_error(upsample(x_), expected), 3e-6);
  const Upsample2d half(file.scope(at::kBFloat16), x_.size(1));
  EXPECT_LE(relative_error(half(x_.to(at::kBFloat16)), expected), 1e-2);
}

// Unlike in a direct convolution of bf16 tensors, tiles and taps are rounded: the distance from the truth was
// up to 1.20 times as large. (In whole blocks other rounding dominates; their limit is 1.1 times the
// reference's distance.)
TEST_P(UpsampleTest, InBf16IsNearTheTruth) {
  const CheckpointFixture file({{"conv.weight", weight_}, {"conv.bias", bias_}});
  const auto convolve = [&](const auto& round) {
    const at::Tensor large = round(x_).repeat_interleave(2, 2).repeat_interleave(2, 3);
    return at::conv2d(large, round(weight_), round(bias_), 1, 1);
  };
  // Products of bf16 numbers are summed in fp32. ATen takes minutes for this where the CPU has no such
  // products.
  const auto to_bf16 = [](const at::Tensor& t) { return t.to(at::kBFloat16).to(at::kFloat); };
  const at::Tensor direct = to_bf16(convolve(to_bf16)).to(at::kDouble);
  const at::Tensor truth = convolve([](const at::Tensor& t) { return t.to(at::kDouble); });
  const auto distance = [&](const at::Tensor& y) { return (y - truth).square().sum().sqrt().item<double>(); };
  const Upsample2d half(file.scope(at::kBFloat16), x_.size(1));
  EXPECT_LE(distance(half(x_.to(at::kBFloat16))), 1.25 * distance(direct));
}

TEST_P(UpsampleTest, ThreadsDoNotChangeTheResult) {
  const CheckpointFixture file({{"conv.weight", weight_}, {"conv.bias", bias_}});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Upsample2d upsample(file.scope(dtype), x_.size(1));
    const at::Tensor x = x_.to(dtype), alone = upsample(x);
    for (int attempt = 0; attempt < 3; ++attempt) {
      at::set_num_threads(3);
      const at::Tensor together = upsample(x);
      at::set_num_threads(1);
      EXPECT_LE(relative_error(together, alone), dtype == at::kFloat ? 1e-6 : 1.0 / 256);
    }
  }
}

// With 512 channels there are several chunks of rows, and the last one is shorter.
INSTANTIATE_TEST_SUITE_P(Sizes, UpsampleTest,
                         ::testing::Values(Size{1, 4, 6, 6}, Size{2, 3, 5, 9}, Size{1, 8, 2, 2},
                                           Size{1, 512, 10, 90}, Size{2, 64, 16, 12}, Size{3, 96, 7, 1},
                                           Size{1, 64, 1, 1}, Size{2, 160, 5, 8}));

}  // namespace
}  // namespace tessera::ops
