#include "media/palette.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/moving_frames.h"

namespace tessera::media {
namespace {

TEST(Palette, KeepsFewColoursExactly) {
  const std::vector<uint8_t> pixels = {255, 0, 0, 1, 2, 3, 255, 0, 0, 250, 240, 20, 0, 0, 0};
  const Palette palette = make_palette(pixels);
  for (size_t i = 0; i < pixels.size(); i += 3) {
    const std::array<uint8_t, 3> expected = {pixels[i], pixels[i + 1], pixels[i + 2]};
    if (expected[0] < 10) continue;  // these two share a cell
    EXPECT_EQ(palette.colours[palette(&pixels[i])], expected);
  }
  EXPECT_EQ(palette.colours.size(), 3U);
}

TEST(Palette, StandsForManyColours) {
  Image image = moving_frame(96, 96, 3);
  for (size_t i = 0; i < image.pixels.size(); ++i)  // noise, so that there are thousands
    image.pixels[i] = static_cast<uint8_t>(image.pixels[i] + (i * 7919 / 13) % 29);
  const Palette palette = make_palette(image.pixels);
  EXPECT_EQ(palette.colours.size(), 256U);
  Image shown = image;
  for (size_t i = 0; i < image.pixels.size(); i += 3) {
    const auto& colour = palette.colours[palette(&image.pixels[i])];
    std::copy(colour.begin(), colour.end(), shown.pixels.begin() + static_cast<std::ptrdiff_t>(i));
  }
  EXPECT_GT(psnr(shown, image), 33);
}

}  // namespace
}  // namespace tessera::media
