#include "media/resize.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "core/error.h"
#include "core/range.h"

namespace tessera::media {
namespace {

// The size that covers height x width, rounded like the reference: half to even.
struct Scaled {
  int64_t height, width;
};

Scaled cover(const Image& image, double pixel_aspect, int64_t height, int64_t width) {
  TESSERA_CHECK(image.height > 0 && image.width > 0 && height > 0 && width > 0, "an empty image");
  const auto h = static_cast<double>(image.height), w = static_cast<double>(image.width) * pixel_aspect;
  const double by_height = static_cast<double>(height) / h, by_width = static_cast<double>(width) / w;
  if (by_height > by_width)
    return {.height = height, .width = static_cast<int64_t>(std::nearbyint(w * by_height))};
  return {.height = static_cast<int64_t>(std::nearbyint(h * by_width)), .width = width};
}

// The pixels that a pixel of the result is made of, along one axis.
struct Taps {
  int64_t begin = 0;             // the first one used
  std::vector<int32_t> weights;  // with 22 fractional bits
};

constexpr int kBits = 22;
constexpr int32_t kHalf = 1 << (kBits - 1);

// Returns the weight of a pixel at a distance of x, in pixels of the smaller of both images; from `support`
// on, it is 0.
struct Filter {
  double support;
  double (*weight)(double x);
};

double cubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

// Computes sin(pi x) / (pi x) within a window of the same form, three times as wide.
double lanczos(double x) {
  const auto sinc = [](double y) {
    return y == 0 ? 1 : std::sin(y * std::numbers::pi) / (y * std::numbers::pi);
  };
  return -3 <= x && x < 3 ? sinc(x) * sinc(x / 3) : 0;
}

constexpr Filter kCubic{.support = 2, .weight = cubic}, kLanczos{.support = 3, .weight = lanczos};

// Returns the taps of the pixels of `part` when `from` pixels are scaled to `to`.
std::vector<Taps> taps_of(const Filter& filter, int64_t from, int64_t to, const Range& part) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double stretch = std::max(scale, 1.0);
  const double support = filter.support * stretch, shrink = 1 / stretch;
  std::vector<Taps> result;
  std::vector<double> weights;
  for (int64_t i = part.begin; i < part.end(); ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    // Rounds as PIL does, except for negative numbers, which the bounds hide.
    const auto rounded = [](double x) { return static_cast<int64_t>(std::floor(x + 0.5)); };
    Taps taps{.begin = std::max<int64_t>(rounded(centre - support), 0), .weights = {}};
    const int64_t end = std::min(rounded(centre + support), from);
    weights.clear();
    double sum = 0;
    for (int64_t j = 0; j < end - taps.begin; ++j) {
      weights.push_back(filter.weight((static_cast<double>(j + taps.begin) - centre + 0.5) * shrink));
      sum += weights.back();
    }
    for (double weight : weights) {
      if (sum != 0) weight /= sum;
      weight *= 1 << kBits;
      taps.weights.push_back(static_cast<int32_t>(weight < 0 ? weight - 0.5 : weight + 0.5));
    }
    result.push_back(std::move(taps));
  }
  return result;
}

// Computes a pixel's channel from pixels that lie `stride` bytes apart.
uint8_t apply(const Taps& taps, const uint8_t* from, int64_t stride) {
  int32_t sum = kHalf;
  for (size_t i = 0; i < taps.weights.size(); ++i)
    sum += from[static_cast<int64_t>(i) * stride] * taps.weights[i];
  return static_cast<uint8_t>(std::clamp(sum >> kBits, 0, 255));
}

// Returns the columns of `part` of the image scaled to `width`.
Image scale_columns(const Filter& filter, const Image& image, int64_t width, const Range& part) {
  const std::vector<Taps> columns = taps_of(filter, image.width, width, part);
  Image result{.height = image.height, .width = part.length, .pixels = {}};
  result.pixels.reserve(static_cast<size_t>(result.height * result.width * 3));
  for (int64_t y = 0; y < image.height; ++y) {
    const uint8_t* const row = image.pixels.data() + y * image.width * 3;
    for (const Taps& taps : columns) {
      for (int64_t channel = 0; channel < 3; ++channel)
        result.pixels.push_back(apply(taps, row + taps.begin * 3 + channel, 3));
    }
  }
  return result;
}

Image scale_rows(const Filter& filter, const Image& image, int64_t height, const Range& part) {
  const int64_t row_bytes = image.width * 3;
  Image result{.height = part.length, .width = image.width, .pixels = {}};
  result.pixels.reserve(static_cast<size_t>(part.length * row_bytes));
  for (const Taps& taps : taps_of(filter, image.height, height, part)) {
    const uint8_t* const first = image.pixels.data() + taps.begin * row_bytes;
    for (int64_t x = 0; x < row_bytes; ++x) result.pixels.push_back(apply(taps, first + x, row_bytes));
  }
  return result;
}

// Where torch reads a pixel along one axis: `weight` is that of the second of two neighbours.
struct Between {
  int64_t first = 0, second = 0;
  float weight = 0;
};

std::vector<Between> linear_places(int64_t from, int64_t to, const Range& part) {
  const float scale = static_cast<float>(from) / static_cast<float>(to);
  std::vector<Between> places;
  for (int64_t i = part.begin; i < part.end(); ++i) {
    if (from == to) {
      places.push_back({.first = i, .second = i, .weight = 0});
      continue;
    }
    const float at = std::max(scale * (static_cast<float>(i) + 0.5F) - 0.5F, 0.0F);
    const int64_t first = std::min(static_cast<int64_t>(at), from - 1);
    const int64_t second = std::min(first + 1, from - 1);
    places.push_back(
        {.first = first, .second = second, .weight = std::clamp(at - static_cast<float>(first), 0.0F, 1.0F)});
  }
  return places;
}

// Scales the rows and the columns of an image. Their order affects the intermediate rounding.
Image scale(const Filter& filter, const Image& image, const Scaled& scaled, const Range& rows,
            const Range& columns) {
  const int64_t fewer_rows = image.height - scaled.height, fewer_columns = image.width - scaled.width;
  if (fewer_rows > 0 && fewer_rows > 2 * fewer_columns)
    return scale_columns(filter, scale_rows(filter, image, scaled.height, rows), scaled.width, columns);
  return scale_rows(filter, scale_columns(filter, image, scaled.width, columns), scaled.height, rows);
}

float of_pixel(uint8_t pixel) {
  return static_cast<float>(pixel) / 255.0F;
}

float to_network(float x) {
  return (x - 0.5F) / 0.5F;
}

}  // namespace

Image cover_image(const Image& image, int64_t height, int64_t width) {
  const Scaled scaled = cover(image, /*pixel_aspect=*/1, height, width);
  const auto middle = [](int64_t total, int64_t length) {
    return Range{.begin = static_cast<int64_t>(std::nearbyint(static_cast<double>(total - length) / 2.0)),
                 .length = length};
  };
  const Range rows = middle(scaled.height, height), columns = middle(scaled.width, width);
  return scale(kCubic, image, scaled, rows, columns);
}

Image scale_image(const Image& image, int64_t scaled_height, int64_t scaled_width, int64_t height,
                  int64_t width) {
  TESSERA_CHECK(0 < height && height <= scaled_height && 0 < width && width <= scaled_width,
                "{} x {} of {} x {} pixels", height, width, scaled_height, scaled_width);
  return scale(kLanczos, image, {.height = scaled_height, .width = scaled_width},
               {.begin = (scaled_height - height) / 2, .length = height},
               {.begin = (scaled_width - width) / 2, .length = width});
}

at::Tensor to_tensor(const Image& image) {
  at::Tensor result = at::empty({3, image.height, image.width}, at::kFloat);
  float* to = result.mutable_data_ptr<float>();
  for (size_t channel = 0; channel < 3; ++channel) {
    for (size_t i = channel; i < image.pixels.size(); i += 3) *to++ = to_network(of_pixel(image.pixels[i]));
  }
  return result;
}

at::Tensor cover_frame(const Image& frame, double pixel_aspect, int64_t height, int64_t width) {
  const Scaled scaled = cover(frame, pixel_aspect, height, width);
  const auto middle = [](int64_t total, int64_t length) {
    return Range{.begin = (total - length) / 2, .length = length};
  };
  const std::vector<Between> rows = linear_places(frame.height, scaled.height, middle(scaled.height, height));
  const std::vector<Between> columns = linear_places(frame.width, scaled.width, middle(scaled.width, width));
  at::Tensor result = at::empty({3, height, width}, at::kFloat);
  float* to = result.mutable_data_ptr<float>();
  for (int64_t channel = 0; channel < 3; ++channel) {
    for (const Between& row : rows) {
      const uint8_t* const upper = frame.pixels.data() + row.first * frame.width * 3 + channel;
      const uint8_t* const lower = frame.pixels.data() + row.second * frame.width * 3 + channel;
      for (const Between& column : columns) {
        const float right = column.weight, left = 1 - right;
        const float above =
            left * of_pixel(upper[column.first * 3]) + right * of_pixel(upper[column.second * 3]);
        const float below =
            left * of_pixel(lower[column.first * 3]) + right * of_pixel(lower[column.second * 3]);
        *to++ = to_network((1 - row.weight) * above + row.weight * below);
      }
    }
  }
  return result;
}

}  // namespace tessera::media
