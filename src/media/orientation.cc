#include "media/orientation.h"

#include <algorithm>
#include <utility>

namespace tessera::media {

Orientation orientation_of_exif(int number) {
  if (number < 2 || number > 8) return {};
  return {.is_transposed = number >= 5,
          .is_mirrored = number == 2 || number == 3 || number == 6 || number == 7,
          .is_upside_down = number == 3 || number == 4 || number == 7 || number == 8};
}

Image oriented(Image image, const Orientation& orientation) {
  if (orientation == Orientation()) return image;
  Image turned{.height = image.height, .width = image.width, .pixels = {}};
  if (orientation.is_transposed) std::swap(turned.height, turned.width);
  turned.pixels.reserve(image.pixels.size());
  for (int64_t y = 0; y < turned.height; ++y) {
    for (int64_t x = 0; x < turned.width; ++x) {
      int64_t row = orientation.is_upside_down ? turned.height - 1 - y : y;
      int64_t column = orientation.is_mirrored ? turned.width - 1 - x : x;
      if (orientation.is_transposed) std::swap(row, column);
      const auto pixel = image.pixels.begin() + (row * image.width + column) * 3;
      turned.pixels.insert(turned.pixels.end(), pixel, pixel + 3);
    }
  }
  return turned;
}

}  // namespace tessera::media
