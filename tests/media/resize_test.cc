#include "media/resize.h"

#include <gtest/gtest.h>

#include "tests/support/golden.h"

namespace tessera::media {
namespace {

Image image_of(const at::Tensor& pixels) {  // [H, W, 3]
  const auto* const data = pixels.const_data_ptr<uint8_t>();
  return {.height = pixels.size(0), .width = pixels.size(1), .pixels = {data, data + pixels.numel()}};
}

// tools/golden/media.py writes `NAME.from` [h, w, 3], `NAME.image` [H, W, 3] (PIL) and `NAME.frame`
// [3, H, W] (torch).
TEST(Cover, ScalesImagesAsPilAndFramesAsTorch) {
  const auto golden = read_golden("media/resize.safetensors");
  int cases = 0;
  for (const auto& [name, from] : golden) {
    if (!name.ends_with(".from")) continue;
    const std::string prefix = name.substr(0, name.size() - 5);
    const at::Tensor& image = golden.at(prefix + ".image");
    const at::Tensor& frame = golden.at(prefix + ".frame");
    const int64_t height = image.size(0), width = image.size(1);
    EXPECT_EQ(cover_image(image_of(from), height, width), image_of(image)) << prefix;
    const at::Tensor got = cover_frame(image_of(from), 1, height, width);
    ASSERT_EQ(got.sizes(), frame.sizes());
    EXPECT_LT((got - frame).abs().max().item<double>(), 2e-6) << prefix;
    ++cases;
  }
  EXPECT_GE(cases, 10);
}

TEST(Cover, TakesLittleMemoryForExtremeRatios) {
  // Scaled whole, this would be 240 x 3,932,160 pixels.
  const Image thread{.height = 1, .width = 16384, .pixels = std::vector<uint8_t>(size_t{16384} * 3, 77)};
  EXPECT_EQ(cover_image(thread, 240, 426).pixels, std::vector<uint8_t>(size_t{240} * 426 * 3, 77));
  EXPECT_TRUE(cover_frame(thread, 1, 240, 426).allclose(to_tensor(cover_image(thread, 240, 426))));
}

TEST(Cover, StretchesPixelsThatAreNotSquare) {
  Image narrow{.height = 8, .width = 6, .pixels = {}}, square{.height = 8, .width = 12, .pixels = {}};
  for (int64_t y = 0; y < 8; ++y) {
    for (int64_t x = 0; x < 6; ++x)
      narrow.pixels.insert(narrow.pixels.end(), 3, static_cast<uint8_t>(20 * x + 20 * y));
    for (int64_t x = 0; x < 12; ++x)
      square.pixels.insert(square.pixels.end(), 3, static_cast<uint8_t>(20 * (x / 2) + 20 * y));
  }
  // Away from the edges between columns, both are the same picture.
  const at::Tensor got = cover_frame(narrow, 2, 16, 24), expected = cover_frame(square, 1, 16, 24);
  EXPECT_LT((got - expected).abs().max().item<double>(), 0.2);
  EXPECT_GT((cover_frame(narrow, 1, 16, 24) - expected).abs().max().item<double>(), 0.2);
}

TEST(Cover, GivesTensorsTheirChannelsAndRange) {
  const at::Tensor tensor = to_tensor({.height = 1, .width = 2, .pixels = {0, 51, 255, 255, 0, 0}});
  const at::Tensor expected = at::tensor({-1.0F, 1.0F, -0.6F, -1.0F, 1.0F, -1.0F}).view({3, 1, 2});
  EXPECT_TRUE(tensor.allclose(expected)) << tensor;
}

}  // namespace
}  // namespace tessera::media
