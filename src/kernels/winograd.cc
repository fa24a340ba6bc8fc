#include "kernels/winograd.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>
#include <type_traits>

#include "core/error.h"
#include "kernels/choices.h"
#include "kernels/winograd_tiles.h"

namespace tessera::kernels {
namespace {

constexpr int64_t kTaps = kWinogradTaps;

// The pixels that receive the 2x2 outputs of a tile.
template <typename T>
struct Target {
  T* pixel[4];
};

struct Two {
  float a, b;
};

// A^T m along one dimension.
TESSERA_INLINE Two gather(float m0, float m1, float m2, float m3) {
  return {m0 + m1 + m2, m1 - m2 - m3};
}

// pixel = A^T m A + bias, or pixel += that, for every channel of a panel, with products m[tap * stride + c].
template <bool kAdd, typename T>
TESSERA_INLINE void transform_products(const float* m, int64_t stride, int64_t channels, const float* bias,
                                       const Target<T>& target) {
  T *y0 = target.pixel[0], *y1 = target.pixel[1], *y2 = target.pixel[2], *y3 = target.pixel[3];
  TESSERA_INDEPENDENT
  for (int64_t c = 0; c < channels; ++c) {
    const float* p = m + c;
    const Two c0 = gather(p[0], p[4 * stride], p[8 * stride], p[12 * stride]);
    const Two c1 = gather(p[stride], p[5 * stride], p[9 * stride], p[13 * stride]);
    const Two c2 = gather(p[2 * stride], p[6 * stride], p[10 * stride], p[14 * stride]);
    const Two c3 = gather(p[3 * stride], p[7 * stride], p[11 * stride], p[15 * stride]);
    const Two upper = gather(c0.a, c1.a, c2.a, c3.a), lower = gather(c0.b, c1.b, c2.b, c3.b);
    store(y0 + c, upper.a + bias[c] + (kAdd ? load(y0[c]) : 0.0F));
    store(y1 + c, upper.b + bias[c] + (kAdd ? load(y1[c]) : 0.0F));
    store(y2 + c, lower.a + bias[c] + (kAdd ? load(y2[c]) : 0.0F));
    store(y3 + c, lower.b + bias[c] + (kAdd ? load(y3[c]) : 0.0F));
  }
}

// One sample: x [height, width, in], y [height, width, out].
template <typename T>
struct Image {
  const T* x;
  T* y;
  int64_t height, width, in, out;
  const T *above, *below;  // rows of x around the part, [width, in], or null

  int64_t tile_columns() const { return (width + 1) / 2; }
  int64_t tiles() const { return (height + 1) / 2 * tile_columns(); }

  // The targets of a tile from `channel` on. Pixels outside the image go to `dropped` (4 panels).
  Target<T> target(int64_t index, int64_t channel, T* dropped, int64_t panel) const {
    const int64_t top = index / tile_columns() * 2, left = index % tile_columns() * 2;
    Target<T> result;
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t row = top + i / 2, column = left + i % 2;
      const bool inside = row < height && column < width;
      result.pixel[i] = inside ? y + (row * width + column) * out + channel : dropped + i * panel;
    }
    return result;
  }
};

// Buffers of one thread for a run of tiles. V is the type of transformed tiles, fp32 if T is narrow.
template <typename T, typename V>
struct Scratch {
  Scratch(int64_t tiles, int64_t in, int64_t panel)
      : input(kTaps * tiles * in), products(kTaps * tiles * panel), wide(in * panel), dropped(4 * panel) {}
  std::vector<V> input;         // [16, tiles, in]
  std::vector<float> products;  // [16, tiles, panel]
  std::vector<float> wide;      // [in, panel]
  std::vector<T> dropped;
};

// The input unchanged.
template <typename T>
class PlainRows {
 public:
  PlainRows(const Image<T>& image, int64_t /*tiles*/)
      : image_(image),
        rows_{image.x, image.height, image.height, image.width, image.in, image.above, image.below},
        zeros_(image.in) {}

  template <typename V>
  void transform(int64_t first, int64_t count, V* v) {
    for (int64_t t = 0; t < count; ++t) {
      const int64_t row = (first + t) / image_.tile_columns(), column = (first + t) % image_.tile_columns();
      transform_input(winograd_tile(rows_, 2 * row - 1, 2 * column - 1, zeros_.data()), image_.in,
                      v + t * image_.in, count * image_.in);
    }
  }

 private:
  const Image<T>& image_;
  ImageRows<T> rows_;
  std::vector<T> zeros_;
};

// The input after GroupNorm and SiLU, in fp32: a ring of the rows that the current tiles read. Runs of tiles
// come in order, so each row is computed only once.
template <typename T>
class NormalisedRows {
 public:
  NormalisedRows(const Image<T>& image, int64_t tiles, ChannelMap map)
      : image_(image),
        map_(map),
        capacity_(std::min(image.height, 2 * ((tiles - 1) / image.tile_columns() + 2) + 2)),
        ring_(new float[capacity_ * image.width * image.in]),
        above_(widened(image.above)),
        below_(widened(image.below)),
        rows_{ring_.get(), capacity_, image.height, image.width, image.in, above_.get(), below_.get()},
        zeros_(image.in) {}

  template <typename V>
  void transform(int64_t first, int64_t count, V* v) {
    const int64_t columns = image_.tile_columns(), row_size = image_.width * image_.in;
    const int64_t end = std::min(image_.height, (first + count - 1) / columns * 2 + 3);
    for (next_ = std::max(next_, first / columns * 2 - 1); next_ < end; ++next_) {
      map_silu(image_.x + next_ * row_size, ring_.get() + next_ % capacity_ * row_size, image_.width,
               image_.in, map_);
    }
    for (int64_t t = 0; t < count; ++t) {
      const int64_t row = (first + t) / columns, column = (first + t) % columns;
      transform_input(winograd_tile(rows_, 2 * row - 1, 2 * column - 1, zeros_.data()), image_.in,
                      v + t * image_.in, count * image_.in);
    }
  }

 private:
  // Widens a row around the image, which is already normalised.
  std::unique_ptr<float[]> widened(const T* row) const {
    if (row == nullptr) return nullptr;
    std::unique_ptr<float[]> wide(new float[image_.width * image_.in]);
    for (int64_t i = 0; i < image_.width * image_.in; ++i) wide[i] = load(row[i]);
    return wide;
  }

  const Image<T>& image_;
  ChannelMap map_;
  int64_t capacity_;
  int64_t next_ = 0;
  std::unique_ptr<float[]> ring_;           // [capacity, width, in]
  std::unique_ptr<float[]> above_, below_;  // [width, in]
  ImageRows<float> rows_;
  std::vector<float> zeros_;
};

template <typename T, typename V, typename Rows>
void convolve_tiles(const Image<T>& image, const T* taps, const float* bias, bool add, int64_t first,
                    int64_t count, Rows& rows, Scratch<T, V>& scratch) {
  const int64_t panel = winograd_panel(image.out);
  const int64_t stride = count * image.in;
  rows.transform(first, count, scratch.input.data());
  float* products = scratch.products.data();
  for (int64_t channel = 0; channel < image.out; channel += panel) {
    for (int64_t tap = 0; tap < kTaps; ++tap) {
      multiply(scratch.input.data() + tap * stride, taps + (tap * image.out + channel) * image.in,
               products + tap * count * panel, count, image.in, panel, scratch.wide.data());
    }
    for (int64_t t = 0; t < count; ++t) {
      const Target<T> target = image.target(first + t, channel, scratch.dropped.data(), panel);
      const auto* tile_products = products + t * panel;
      if (add) {
        run_kernel<transform_products<true, T>>(tile_products, count * panel, panel, bias + channel, target);
      } else {
        run_kernel<transform_products<false, T>>(tile_products, count * panel, panel, bias + channel, target);
      }
    }
  }
}

template <typename V, typename T, typename... Map>
void convolve(const Image<T>& image, const T* taps, const float* bias, bool add, Map... map) {
  using Rows = std::conditional_t<sizeof...(Map) == 0, PlainRows<T>, NormalisedRows<T>>;
  const int64_t per_block = winograd_run(image.tiles(), image.in);
  const int64_t blocks = (image.tiles() + per_block - 1) / per_block;
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    Scratch<T, V> scratch(per_block, image.in, winograd_panel(image.out));
    Rows rows(image, per_block, map...);
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * per_block;
      convolve_tiles(image, taps, bias, add, first, std::min(per_block, image.tiles() - first), rows,
                     scratch);
    }
  });
}

template <typename T, typename V>
void convolve(const Winograd& conv, const at::Tensor& x, at::Tensor& y, bool add, const ChannelMaps* maps,
              const Halo& halo) {
  const int64_t pixels = x.size(2) * x.size(3);
  const auto* taps = static_cast<const T*>(conv.taps.const_data_ptr());
  const float* bias = conv.bias.const_data_ptr<float>();
  for (int64_t b = 0; b < x.size(0); ++b) {
    const Image<T> image{static_cast<const T*>(x.const_data_ptr()) + b * pixels * conv.in_channels,
                         static_cast<T*>(y.mutable_data_ptr()) + b * pixels * conv.out_channels,
                         x.size(2),
                         x.size(3),
                         conv.in_channels,
                         conv.out_channels,
                         halo_row<T>(halo.above, b),
                         halo_row<T>(halo.below, b)};
    if (maps) {
      convolve<V>(image, taps, bias, add, maps->sample(b));
    } else {
      convolve<V>(image, taps, bias, add);
    }
  }
}

}  // namespace

bool winograd_is_faster(int64_t in, int64_t out, at::ScalarType dtype, at::Device device) {
  if (!device.is_cpu() || in < 64 || out < 64 || in % 32 != 0 || out % 32 != 0) return false;
  if (dtype == at::kBFloat16 && is_multiplied(dtype)) return choices().winograd_bf16;
  return (dtype == at::kFloat || dtype == at::kBFloat16) && choices().winograd;
}

Winograd::Winograd(const at::Tensor& weight, const at::Tensor& bias_vector, at::ScalarType dtype)
    : in_channels(weight.size(1)),
      out_channels(weight.size(0)),
      bias(bias_vector.to(at::kFloat).contiguous()) {
  TESSERA_CHECK(in_channels % 32 == 0 && out_channels % 32 == 0,
                "Winograd needs multiples of 32 channels, got {} to {}", in_channels, out_channels);
  static const WinogradFilter filter = {
      .g = {{1, 0, 0}, {0.5F, 0.5F, 0.5F}, {0.5F, -0.5F, 0.5F}, {0, 0, 1}},
      .order = {1, 2, 0, 3},
      .c = {{0, -0.5F, -0.5F, 0}, {0, 0, 0, 0}, {0, -1.0F / 3, 0, 0}, {0, -0.5F, -0.5F, 0}}};
  taps = make_taps(weight, filter, dtype);
}

void Winograd::operator()(const at::Tensor& x, at::Tensor& y, bool add, const ChannelMaps* maps,
                          const std::optional<Halo>& halo) const {
  TESSERA_CHECK(x.scalar_type() == taps.scalar_type() && y.scalar_type() == taps.scalar_type(),
                "convolution of {} with weights in {}", c10::toString(x.scalar_type()),
                c10::toString(taps.scalar_type()));
  const Halo around = checked_halo(halo, x);
  if (taps.scalar_type() == at::kFloat) {
    convolve<float, float>(*this, x, y, add, maps, around);
  } else if (is_multiplied(at::kBFloat16)) {
    convolve<Bf16, Bf16>(*this, x, y, add, maps, around);
  } else {
    convolve<Bf16, float>(*this, x, y, add, maps, around);
  }
}

}  // namespace tessera::kernels
