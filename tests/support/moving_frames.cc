#include "tests/support/moving_frames.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace tessera {

Image moving_frame(int64_t height, int64_t width, int64_t number) {
  Image image{.height = height, .width = width, .pixels = {}};
  const auto h = static_cast<double>(height), w = static_cast<double>(width);
  const double radius = std::min(h, w) / 4, centre = radius + static_cast<double>(number);
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      const double down = static_cast<double>(y) / h, right = static_cast<double>(x) / w;
      const double distance = std::hypot(static_cast<double>(y) - h / 2, static_cast<double>(x) - centre);
      const double disc = std::clamp((radius - distance) / 3, 0.0, 1.0);  // its edge is soft
      for (const double channel : {60 + 120 * down, 80 + 60 * right, 180 - 80 * down * right})
        image.pixels.push_back(static_cast<uint8_t>(std::lround(channel * (1 - disc) + 200 * disc)));
    }
  }
  return image;
}

double psnr(const Image& a, const Image& b) {
  TESSERA_CHECK(a.height == b.height && a.width == b.width, "{} x {} against {} x {}", a.height, a.width,
                b.height, b.width);
  double squares = 0;
  for (size_t i = 0; i < a.pixels.size(); ++i) {
    const double difference = static_cast<double>(a.pixels[i]) - b.pixels[i];
    squares += difference * difference;
  }
  return 10 * std::log10(255.0 * 255.0 * static_cast<double>(a.pixels.size()) / squares);
}

}  // namespace tessera
