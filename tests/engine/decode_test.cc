#include "engine/decode.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "comm/collectives.h"
#include "core/error.h"
#include "core/log.h"
#include "engine/tiled_decode.h"
#include "tests/support/rank_threads.h"

namespace tessera::engine {
namespace {

TEST(ToImage, RoundsHalfToEvenAndClamps) {
  // -2 and 2 are out of range, and 0 lies exactly between two pixel values.
  const at::Tensor x = at::tensor({-2.0F, 2.0F, 0.0F, -1.0F, 1.0F}).view({1, 1, 5}).expand({3, 1, 5});
  const Image image = to_image(x);
  EXPECT_EQ(image.height, 1);
  EXPECT_EQ(image.width, 5);
  const std::vector<uint8_t> row = {0, 255, 128, 0, 255};  // 127.5 goes to the even 128
  for (size_t i = 0; i < row.size(); ++i) EXPECT_EQ(image.pixels[i * 3], row[i]) << i;
}

TEST(ToImage, KeepsChannelsAndRowsInOrder) {
  const at::Tensor levels = at::arange(3 * 2 * 4, at::kFloat).view({3, 2, 4});
  const Image image = to_image(levels / 255 * 2 - 1);
  for (int64_t y = 0; y < 2; ++y) {
    for (int64_t x = 0; x < 4; ++x) {
      for (int64_t c = 0; c < 3; ++c) {
        EXPECT_EQ(image.pixels[static_cast<size_t>((y * 4 + x) * 3 + c)], c * 8 + y * 4 + x);
      }
    }
  }
}

TEST(ToImage, MakesNotANumberBlackAndWarns) {
  std::vector<std::string> warnings;
  const LogSink before = set_log_sink([&](LogLevel, const std::string& text) { warnings.push_back(text); });
  const at::Tensor none = at::full({3, 1, 1}, std::numeric_limits<float>::quiet_NaN());
  const Image image = to_image(none, at::kHalf);
  to_image(none, at::kFloat);
  set_log_sink(before);
  EXPECT_EQ(image.pixels, (std::vector<uint8_t>{0, 0, 0}));
  ASSERT_EQ(warnings.size(), 2U);
  EXPECT_NE(spell(warnings[0]).find("try dtype fp32"), std::string::npos) << warnings[0];
  EXPECT_NE(spell(warnings[1]).find("try a smaller guidance_scale"), std::string::npos) << warnings[1];
}

struct ResizeCase {
  int64_t from_height, from_width, to_height, to_width;
};

class Resize : public testing::TestWithParam<ResizeCase> {};

TEST_P(Resize, GivesTheSizeAndKeepsTheCentre) {
  const auto [from_height, from_width, to_height, to_width] = GetParam();
  // A horizontal ramp stays a ramp around 0 in the middle, whatever is cut off at the sides.
  const at::Tensor ramp = at::linspace(-1, 1, from_width, at::kFloat).expand({1, 3, from_height, from_width});
  const at::Tensor x = resize_and_crop(ramp, to_height, to_width);
  EXPECT_EQ(x.sizes(), (at::IntArrayRef{1, 3, to_height, to_width}));
  const double pixel = 2.0 / static_cast<double>(to_width);
  EXPECT_NEAR(x.mean().item<double>(), 0, pixel);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Resize,
                         testing::Values(ResizeCase{8, 8, 8, 8}, ResizeCase{64, 64, 40, 40},
                                         ResizeCase{64, 32, 40, 40}, ResizeCase{32, 64, 100, 72},
                                         ResizeCase{49, 49, 7, 7}, ResizeCase{768, 1344, 760, 1304},
                                         ResizeCase{103, 103, 93, 103}));

// Pictures do not depend on what else is in memory, so blocks do not either.
TEST(AutomaticBlocks, AreTheSameWhateverIsFree) {
  const auto free_kilobytes = [] {
    std::ifstream file("/proc/meminfo");
    int64_t number = 0;
    for (std::string word; file >> word;) {
      if (word == "MemAvailable:") file >> number;
    }
    return number;
  };
  const int64_t before = automatic_blocks(at::kCPU, 2).bytes, free_before = free_kilobytes();
  // The kernel counts what is free with some delay.
  constexpr int64_t kPiece = 64, kMostPieces = 16;  // in MiB
  std::vector<at::Tensor> taken;
  while (std::ssize(taken) < kMostPieces && free_kilobytes() > free_before - kPiece * 1024)
    taken.push_back(at::ones({kPiece << 20}, at::kByte));
  EXPECT_EQ(automatic_blocks(at::kCPU, 2).bytes, before);
  EXPECT_NEAR(static_cast<double>(automatic_blocks(at::kCPU, 1).bytes), 2.0 * static_cast<double>(before), 2);
}

struct FakeDecoder : models::Decoder {
  at::Tensor decode_clip(const at::Tensor& z, int64_t /*frames*/, nn::Tokens& /*tokens*/,
                         models::ClipMemory* /*memory*/) const override {
    sizes.push_back(z.size(0));
    return z.narrow(1, 0, 1).expand({1, 3, -1, -1}).repeat_interleave(8, 2).repeat_interleave(8, 3);
  }
  int64_t tile_size() const override { return 64; }
  int64_t scale_factor() const override { return 8; }
  int64_t clip_bytes(int64_t /*height*/, int64_t /*width*/) const override { return 0; }
  mutable std::vector<int64_t> sizes;
};

TEST(Decode, OnePictureAtATimeInOrder) {
  const FakeDecoder decoder;
  const at::Tensor z = at::tensor({-1.0F, 1.0F}).view({2, 1, 1, 1}).expand({2, 4, 2, 3});
  const std::vector<Image> images = decode(decoder, z, 16, 24, {});
  ASSERT_EQ(images.size(), 2U);
  EXPECT_EQ(images[0].height, 16);
  EXPECT_EQ(images[0].width, 24);
  EXPECT_EQ(images[0].pixels.front(), 0);
  EXPECT_EQ(images[1].pixels.front(), 255);
  EXPECT_EQ(decoder.sizes, (std::vector<int64_t>{1, 1}));
}

// Runs on ranks as threads, with a group of all of them.
void on_ranks(int64_t ranks, const std::function<void(const comm::Group&)>& run) {
  comm::run_ranks_as_threads(ranks, [&](comm::World world) {
    std::vector<int64_t> all(static_cast<size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    const comm::Group group = world.group(all, "vae");
    comm::connect(group, at::kCPU);
    run(group);
  });
}

// Where the model's size is another one, in height, in width, or in both.
TEST(Decode, GivesTheSizeThatWasAskedFor) {
  const FakeDecoder decoder;
  at::manual_seed(3);
  const at::Tensor z = at::randn({1, 4, 21, 13}).clamp(-1, 1);  // 168 x 104
  for (const auto& [height, width] : {std::pair{168, 104}, {160, 104}, {168, 100}, {160, 100}}) {
    const at::Tensor expected = resize_and_crop(decoder.decode(z), height, width)[0];
    for (const bool tiled : {false, true}) {
      const std::vector<Image> images = decode(decoder, z, height, width, {}, {}, {.tiled = tiled});
      ASSERT_EQ(images.size(), 1U);
      EXPECT_EQ(images[0].height, height);
      EXPECT_EQ(images[0].width, width);
      EXPECT_EQ(images[0].pixels, to_image(expected).pixels) << height << " x " << width << ", " << tiled;
    }
  }
}

// An image is refused only if no number of it is one, whichever ranks have its rows. Two of five rows are
// left for the last ranks of four, and none if there are but two.
TEST(DecodeOnRanks, RefusesAnImageWithoutNumbers) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto refuses = [](const at::Tensor& z, const comm::Group& group, bool tiled) {
    const DecodeOptions options{.tiled = tiled,
                                .overflow = [] { return Error(ErrorKind::kInput, "vae", "overflow"); }};
    try {
      decode(FakeDecoder(), z, z.size(2) * 8, z.size(3) * 8, {}, group, options);
    } catch (const Error&) {
      return true;
    }
    return false;
  };
  for (const int64_t rows : {2, 5}) {
    const at::Tensor none = at::full({1, 4, rows, 3}, nan), some = none.clone();
    some.select(2, rows - 1).zero_();
    for (const int64_t ranks : {1, 2, 4}) {
      on_ranks(ranks, [&](const comm::Group& group) {
        EXPECT_FALSE(refuses(at::zeros_like(none), group, false)) << rows << " rows, " << ranks << " ranks";
        EXPECT_FALSE(refuses(some, group, false)) << rows << " rows, " << ranks << " ranks";
        EXPECT_TRUE(refuses(none, group, false)) << rows << " rows, " << ranks << " ranks";
      });
    }
  }
  const at::Tensor tiles = at::full({1, 4, 9, 9}, nan);
  EXPECT_TRUE(refuses(tiles, {}, true));
  EXPECT_FALSE(refuses(at::zeros_like(tiles), {}, true));
}

// With a decoder that takes each latent by itself, tiles agree where they overlap.
TEST(TiledDecode, OfSuchADecoderIsTheWholeOnAnyRanks) {
  at::manual_seed(2);
  const at::Tensor z = at::randn({1, 4, 21, 13});  // tiles of 8 x 8, the last ones smaller
  const FakeDecoder whole;
  ASSERT_TRUE(has_several_tiles(whole, z));
  EXPECT_FALSE(has_several_tiles(whole, z.narrow(2, 0, 8).narrow(3, 0, 8)));
  EXPECT_TRUE(has_several_tiles(whole, z.narrow(2, 0, 8)));
  EXPECT_TRUE(has_several_tiles(whole, z.narrow(3, 0, 8)));
  for (const int64_t ranks : {1, 2, 3, 5}) {
    on_ranks(ranks, [&](const comm::Group& group) {
      const FakeDecoder decoder;
      const at::Tensor picture = decode_tiled(decoder, z, group);
      ASSERT_EQ(picture.defined(), group.rank == 0);
      EXPECT_LE(decoder.sizes.size(), static_cast<size_t>((12 + ranks - 1) / ranks));  // 4 x 3 tiles
      if (picture.defined()) {
        EXPECT_TRUE(at::allclose(picture, whole.decode(z), /*rtol=*/0, /*atol=*/1e-6)) << ranks;
      }
    });
  }
}

}  // namespace
}  // namespace tessera::engine
