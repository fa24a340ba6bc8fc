#include "nn/conv.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <barrier>
#include <numeric>
#include <thread>

#include "comm/collectives.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/golden.h"
#include "tests/support/rank_threads.h"
#include "tests/support/strict_device.h"

namespace tessera::nn {
namespace {

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;

struct Case {
  int64_t ranks, batch, in, out, height, width;
  int64_t unit = 2;  // rows of the cut
  int64_t kernel = 3, stride = 1;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << fmt::format("{} ranks, [{}, {} to {}, {} x {}], units of {}, kernel {}, stride {}", c.ranks,
                      c.batch, c.in, c.out, c.height, c.width, c.unit, c.kernel, c.stride);
}

// A layer over rows that lie on several ranks gives each rank its rows of the result over the whole picture.
class RowsTest : public ::testing::TestWithParam<Case> {
 protected:
  using Layer = std::function<at::Tensor(at::Tensor, const Rows&)>;
  using Scale = std::function<parallel::Cut(const parallel::Cut&)>;

  void SetUp() override {
    const Case& c = GetParam();
    at::manual_seed(4);
    x_ = (at::randn({c.batch, c.in, c.height, c.width}) + 0.5).contiguous(kChannelsLast);
    file_ = std::make_unique<CheckpointFixture>(std::map<std::string, at::Tensor>{
        {"weight", at::randn({c.out, c.in, c.kernel, c.kernel}) /
                       std::sqrt(static_cast<double>(c.in * c.kernel * c.kernel))},
        {"bias", at::randn({c.out})},
        {"conv.weight", square_ = at::randn({c.in, c.in, 3, 3}) / std::sqrt(9.0 * static_cast<double>(c.in))},
        {"conv.bias", square_bias_ = at::randn({c.in})}});
    norm_ = ops::GroupNorm(at::randn({c.in}), at::randn({c.in}), c.in % 8 == 0 ? 8 : 1, 1e-5,
                           ops::Activation::kSilu);
  }

  void expect_the_same(const Layer& layer, const Scale& scale, at::ScalarType dtype = at::kFloat,
                       double tolerance = 1e-5) {
    const Case& c = GetParam();
    const at::Tensor x = x_.to(dtype);
    Tokens alone(parallel::Grid{.rows = c.height, .columns = c.width});
    const at::Tensor whole = layer(x.clone(), Rows(alone));
    comm::run_ranks_as_threads(c.ranks, [&](comm::World world) {
      std::vector<int64_t> all(static_cast<size_t>(c.ranks));
      std::iota(all.begin(), all.end(), 0);
      const comm::Group group = world.group(all, "rows");
      comm::connect(group, at::kCPU);
      const parallel::Cut cut({.rows = c.height, .columns = c.width}, parallel::GridAxis::kRows, 1, c.ranks,
                              c.unit);
      Tokens tokens(cut, {.ring = group, .all = group});
      const Range in = cut.part(0, group.rank), out = scale(cut).part(0, group.rank);
      const at::Tensor y = layer(x.narrow(2, in.begin, in.length).clone(kChannelsLast), Rows(tokens));
      EXPECT_EQ(y.size(2), out.length);
      if (out.length == 0) return;
      EXPECT_LE(relative_error(y, whole.narrow(2, out.begin, out.length)), tolerance)
          << "rank " << group.rank;
    });
  }

  static parallel::Cut same(const parallel::Cut& cut) { return cut; }
  Scale of_stride() const {
    return GetParam().stride == 1 ? Scale(same) : [](const parallel::Cut& cut) { return cut.coarser(); };
  }
  Conv2d conv(at::ScalarType dtype = at::kFloat) const {
    const Case& c = GetParam();
    return {file_->scope(dtype), c.in, c.out, c.kernel, c.stride, c.kernel / 2};
  }

  at::Tensor x_, square_, square_bias_;
  std::unique_ptr<CheckpointFixture> file_;
  ops::GroupNorm norm_;
};

TEST_P(RowsTest, Convolution) {
  const Conv2d layer = conv(), half = conv(at::kBFloat16);
  const auto apply = [](const Conv2d& c) {
    return [&c](const at::Tensor& x, const Rows& rows) { return c(x, rows); };
  };
  expect_the_same(apply(layer), of_stride());
  expect_the_same(apply(half), of_stride(), at::kBFloat16, 1.0 / 64);
}

TEST_P(RowsTest, ConvolutionOfANormWithAnOffset) {
  const at::Tensor offset = at::randn({x_.size(0), x_.size(1)});
  const Conv2d layer = conv();
  expect_the_same([&](at::Tensor x, const Rows& rows) { return layer(norm_, std::move(x), rows, offset); },
                  of_stride());
}

TEST_P(RowsTest, ConvolutionAddedToATensor) {
  if (GetParam().stride != 1) return;
  const Conv2d layer = conv();
  expect_the_same(
      [&](at::Tensor x, const Rows& rows) {
        const int64_t out = GetParam().out;
        at::Tensor sum = x.mean(1, /*keepdim=*/true).repeat({1, out, 1, 1}).contiguous(kChannelsLast);
        layer.add_to(sum, norm_, std::move(x), rows);
        return sum;
      },
      same);
}

TEST_P(RowsTest, Norm) {
  expect_the_same([&](at::Tensor x, const Rows& rows) { return group_norm(norm_, std::move(x), rows); },
                  same);
}

TEST_P(RowsTest, Attention) {
  expect_the_same(
      [&](const at::Tensor& x, const Rows& rows) {
        const at::Tensor tokens = x.flatten(2).transpose(1, 2).contiguous();  // [B, h W, C]
        const at::Tensor y = rows.attention({tokens, tokens * 0.5, tokens.flip(2)}, x.size(1));
        return y.transpose(1, 2).unflatten(2, {x.size(2), x.size(3)});
      },
      same);
}

TEST_P(RowsTest, Upsampling) {
  const Upsample2d layer(file_->scope(), GetParam().in);
  expect_the_same([&](const at::Tensor& x, const Rows& rows) { return layer(x, rows); },
                  [](const parallel::Cut& cut) { return cut.finer(); });
}

TEST_P(RowsTest, DownsamplingWithPaddingAtTheEnd) {
  const Case& c = GetParam();
  const PaddedDownsample2d layer(file_->scope(), c.in);
  const at::Tensor padded = at::constant_pad_nd(x_.to(at::kDouble), {0, 1, 0, 1});
  const at::Tensor expected =
      at::conv2d(padded, square_.to(at::kDouble), square_bias_.to(at::kDouble), /*stride=*/2);
  Tokens alone(parallel::Grid{.rows = c.height, .columns = c.width});
  EXPECT_LE(relative_error(layer(x_, Rows(alone)), expected), 3e-6);
  if (c.height % 2 != 0 || c.unit % 2 != 0) return;  // the VAE's sizes divide by its scale factor
  expect_the_same([&](const at::Tensor& x, const Rows& rows) { return layer(x, rows); },
                  [](const parallel::Cut& cut) { return cut.coarser(); });
}

INSTANTIATE_TEST_SUITE_P(Ranks, RowsTest,
                         ::testing::Values(Case{2, 1, 64, 96, 8, 6}, Case{2, 2, 64, 64, 7, 5},  // Winograd
                                           Case{3, 2, 16, 8, 14, 9}, Case{4, 1, 8, 5, 8, 4},
                                           Case{8, 1, 8, 8, 16, 3}, Case{3, 1, 8, 8, 13, 4, 4},
                                           Case{2, 2, 8, 12, 12, 6, 2, 3, 2},
                                           Case{3, 1, 64, 64, 11, 8, 2, 3, 2},
                                           Case{4, 1, 8, 8, 4, 6, 1, 3, 1}, Case{4, 2, 8, 8, 4, 6, 1, 5, 1},
                                           Case{2, 1, 8, 16, 6, 6, 2, 1, 1},
                                           // There are more ranks than units, so the last ones hold nothing.
                                           Case{4, 1, 64, 64, 3, 5, 1}, Case{8, 2, 8, 8, 5, 4, 2}));

// Ranks that are threads share a model, so they may reach an odd size at the same time.
TEST(RankThreads, LayTheWeightOfOddSizesOutOnce) {
  constexpr int64_t kChannels = 16, kThreads = 4, kTries = 20;
  at::manual_seed(5);
  const at::Tensor weight = at::randn({kChannels, kChannels, 3, 3}) / 12, bias = at::randn({kChannels});
  const at::Tensor x = at::randn({2, kChannels, 4, 5}).contiguous(kChannelsLast);
  const CheckpointFixture file({{"conv.weight", weight}, {"conv.bias", bias}});
  const auto apply = [&](const UpsampleToScale2d& layer, int64_t height, int64_t width) {
    const at::Tensor large = at::upsample_nearest2d(x.to(at::kDouble), at::IntArrayRef{8, 10});
    const at::Tensor expected = at::conv2d(large.narrow(2, 0, height).narrow(3, 0, width),
                                           weight.to(at::kDouble), bias.to(at::kDouble), 1, 1);
    Tokens alone(parallel::Grid{.rows = height, .columns = width});
    const Rows to(alone);
    EXPECT_LE(relative_error(layer(x, to.coarser(), to), expected), 3e-6) << height << " x " << width;
  };
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const UpsampleToScale2d layer(file.scope(), kChannels);
    apply(layer, 8, 10);
    EXPECT_TRUE(layer.plain->weight.defined()) << "even sizes do without";
    {
      std::barrier begin(kThreads);
      std::vector<std::jthread> threads;
      for (int64_t i = 0; i < kThreads; ++i) {
        threads.emplace_back([&, i] {
          begin.arrive_and_wait();
          apply(layer, 7, 9 + i % 2);
        });
      }
    }
    EXPECT_FALSE(layer.plain->weight.defined());
    const at::Tensor laid_out = layer.plain->conv.conv.weight;
    apply(layer, 8, 9);
    EXPECT_TRUE(layer.plain->conv.conv.weight.is_same(laid_out));
  }
}

// On a device whose kernels normalise whole pictures at once, blocks keep that from being done where memory
// is short.
TEST(BlocksOnAStrictDevice, AreKeptByConvolutionsOfANorm) {
  constexpr int64_t kChannels = 16, kSide = 48;
  const CheckpointFixture file(
      {{"weight", at::randn({kChannels, kChannels, 3, 3}) / 12}, {"bias", at::randn({kChannels})}});
  weights::Checkpoint checkpoint(file.folder(), weights::Library::kTransformers);
  const Conv2d layer(weights::Scope(checkpoint, {.device = strict_device()}), kChannels, kChannels, 3, 1, 1);
  const auto there = [](const at::Tensor& x) { return x.to(strict_device()); };
  const ops::GroupNorm norm(there(at::randn({kChannels})), there(at::randn({kChannels})), 4, 1e-6,
                            ops::Activation::kSilu);
  const at::Tensor x = there(at::randn({1, kChannels, kSide, kSide}).contiguous(kChannelsLast));
  const auto run = [&](const ops::ConvBlocks& blocks, int64_t& most_bytes) {
    Tokens tokens(parallel::Grid{.rows = kSide, .columns = kSide});
    tokens.limit_convolutions(blocks);
    StrictTraffic& traffic = strict_traffic();
    const int64_t before = traffic.most_bytes = traffic.bytes.load();
    const at::Tensor y = layer(norm, x, Rows(tokens));
    most_bytes = traffic.most_bytes - before;
    return y.cpu();
  };
  int64_t whole = 0, of_rows = 0, of_bytes = 0;
  const at::Tensor expected = run({}, whole);
  const auto picture = static_cast<int64_t>(x.nbytes());
  EXPECT_LE(relative_error(run({.rows = 4}, of_rows), expected), 1e-5);
  EXPECT_LE(relative_error(run({.bytes = picture / 8}, of_bytes), expected), 1e-5);
  EXPECT_GE(whole, 2 * picture);  // what comes out, and the normalised picture
  EXPECT_LE(of_rows, 7 * picture / 4);
  EXPECT_LE(of_bytes, 7 * picture / 4);
}

}  // namespace
}  // namespace tessera::nn
