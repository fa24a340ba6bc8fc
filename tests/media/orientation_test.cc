#include "media/orientation.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera::media {
namespace {

// The letters of the picture, row by row, are its pixels.
Image picture(const std::vector<std::string>& rows) {
  Image image{.height = static_cast<int64_t>(rows.size()),
              .width = static_cast<int64_t>(rows.front().size()),
              .pixels = {}};
  for (const std::string& row : rows) {
    for (const char letter : row) {
      const auto value = static_cast<uint8_t>(letter);
      image.pixels.insert(image.pixels.end(),
                          {value, static_cast<uint8_t>(value + 50), static_cast<uint8_t>(value + 100)});
    }
  }
  return image;
}

// Exif 2.32, 4.6.4 A: the sides of the picture on which the first row and the first column are shown.
TEST(Orientation, PutsEveryPixelWhereExifSays) {
  const std::vector<std::vector<std::string>> shown = {{"abc", "def"},       // top, left
                                                       {"cba", "fed"},       // top, right
                                                       {"fed", "cba"},       // bottom, right
                                                       {"def", "abc"},       // bottom, left
                                                       {"ad", "be", "cf"},   // left, top
                                                       {"da", "eb", "fc"},   // right, top
                                                       {"fc", "eb", "da"},   // right, bottom
                                                       {"cf", "be", "ad"}};  // left, bottom
  for (int number = 1; number <= 8; ++number) {
    const Image turned = oriented(picture({"abc", "def"}), orientation_of_exif(number));
    const Image expected = picture(shown[static_cast<size_t>(number - 1)]);
    EXPECT_EQ(turned.height, expected.height) << number;
    EXPECT_EQ(turned.width, expected.width) << number;
    EXPECT_EQ(turned.pixels, expected.pixels) << number;
  }
}

}  // namespace
}  // namespace tessera::media
