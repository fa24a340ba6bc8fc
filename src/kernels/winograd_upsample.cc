#include "kernels/winograd_upsample.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "core/error.h"
#include "kernels/choices.h"
#include "kernels/winograd_tiles.h"

namespace tessera::kernels {
namespace {

// The products along one dimension: four of the filter before a corner, of which the filter after it shares
// the second, and three more of the latter. Each uses one of the tile's four transformed rows.
constexpr int64_t kTaps = 7;
static_assert(kTaps * kTaps == kUpsampleTaps);
constexpr int64_t kRowOfTap[kTaps] = {0, 1, 2, 3, 0, 2, 3};
constexpr int64_t kTapsOfPhase[2][4] = {{0, 1, 2, 3}, {4, 1, 5, 6}};

constexpr int64_t kCorners = 3;            // per tile along one dimension
constexpr int64_t kPixels = 2 * kCorners;  // of the large image, per tile along one dimension

struct Three {
  float a, b, c;
};

// A^T m along one dimension.
TESSERA_INLINE Three gather(float m0, float m1, float m2, float m3) {
  return {m0 + m1 + m2, m1 - m2, m1 + m2 - m3};
}

// The products of a tile, m[tap * stride + c], by the rows of taps that one phase uses.
struct Products {
  const float* row[4];
  int64_t stride;
};

TESSERA_INLINE Three gather_column(const Products& m, int64_t column, int64_t c) {
  const int64_t at = column * m.stride + c;
  return gather(m.row[0][at], m.row[1][at], m.row[2][at], m.row[3][at]);
}

// Computes one row of six pixels from the sums of the seven columns.
template <typename T>
TESSERA_INLINE void store_row(T* const* pixel, int64_t c, float bias, float m0, float m1, float m2, float m3,
                              float m4, float m5, float m6) {
  const Three before = gather(m0, m1, m2, m3), after = gather(m4, m1, m5, m6);
  store(pixel[0] + c, before.a + bias), store(pixel[1] + c, after.a + bias);
  store(pixel[2] + c, before.b + bias), store(pixel[3] + c, after.b + bias);
  store(pixel[4] + c, before.c + bias), store(pixel[5] + c, after.c + bias);
}

// Computes the three rows of six pixels of one phase: pixel = A^T m A + bias for every channel of a panel.
template <typename T>
TESSERA_INLINE void transform_products(const Products& m, int64_t channels, const float* bias,
                                       T* const* pixel) {
  TESSERA_INDEPENDENT
  for (int64_t c = 0; c < channels; ++c) {
    const Three m0 = gather_column(m, 0, c), m1 = gather_column(m, 1, c), m2 = gather_column(m, 2, c),
                m3 = gather_column(m, 3, c), m4 = gather_column(m, 4, c), m5 = gather_column(m, 5, c),
                m6 = gather_column(m, 6, c);
    store_row(pixel, c, bias[c], m0.a, m1.a, m2.a, m3.a, m4.a, m5.a, m6.a);
    store_row(pixel + kPixels, c, bias[c], m0.b, m1.b, m2.b, m3.b, m4.b, m5.b, m6.b);
    store_row(pixel + 2 * kPixels, c, bias[c], m0.c, m1.c, m2.c, m3.c, m4.c, m5.c, m6.c);
  }
}

// One sample: x [height, width, in], y [2 height, 2 width, out].
template <typename T>
struct Image {
  ImageRows<T> x;
  T* y;
  int64_t height, width, out;

  // There is a corner before and after every pixel.
  int64_t tile_columns() const { return (width + kCorners) / kCorners; }
  int64_t tiles() const { return (height + kCorners) / kCorners * tile_columns(); }

  WinogradTile<T> tile(int64_t index, const T* zeros) const {
    const int64_t row = index / tile_columns() * kCorners, column = index % tile_columns() * kCorners;
    return winograd_tile(x, row - 1, column - 1, zeros);
  }

  // The targets of the rows of a tile that lie before (phase 0) or after its corners, from `channel` on.
  // Pixels outside the image go to `dropped`.
  void targets(int64_t index, int64_t phase, int64_t channel, T* dropped, T** pixel) const {
    const int64_t top = index / tile_columns() * kPixels - 1 + phase;
    const int64_t left = index % tile_columns() * kPixels - 1;
    for (int64_t i = 0; i < kCorners * kPixels; ++i) {
      const int64_t row = top + i / kPixels * 2, column = left + i % kPixels;
      const bool inside = row >= 0 && row < 2 * height && column >= 0 && column < 2 * width;
      pixel[i] = inside ? y + (row * 2 * width + column) * out + channel : dropped;
    }
  }
};

// Buffers of one thread for a run of tiles. V is the type of transformed tiles, fp32 if T is narrow.
template <typename T, typename V>
struct Scratch {
  Scratch(int64_t tiles, int64_t in, int64_t panel)
      : input(16 * tiles * in),
        products(kTaps * kTaps * tiles * panel),
        wide(in * panel),
        zeros(in),
        dropped(panel) {}
  std::vector<V> input;         // [4 x 4, tiles, in]
  std::vector<float> products;  // [7 x 7, tiles, panel]
  std::vector<float> wide;      // [in, panel]
  std::vector<T> zeros, dropped;
};

template <typename T, typename V>
void convolve_tiles(const Image<T>& image, const T* taps, const float* bias, int64_t first, int64_t count,
                    Scratch<T, V>& scratch) {
  const int64_t panel = winograd_panel(image.out);
  const int64_t stride = count * image.x.channels, product_stride = count * panel;
  for (int64_t t = 0; t < count; ++t) {
    transform_input(image.tile(first + t, scratch.zeros.data()), image.x.channels,
                    scratch.input.data() + t * image.x.channels, stride);
  }
  float* products = scratch.products.data();
  for (int64_t channel = 0; channel < image.out; channel += panel) {
    for (int64_t tap = 0; tap < kTaps * kTaps; ++tap) {
      const int64_t source = kRowOfTap[tap / kTaps] * 4 + kRowOfTap[tap % kTaps];
      multiply(scratch.input.data() + source * stride, taps + (tap * image.out + channel) * image.x.channels,
               products + tap * product_stride, count, image.x.channels, panel, scratch.wide.data());
    }
    for (int64_t t = 0; t < count; ++t) {
      for (int64_t phase = 0; phase < 2; ++phase) {
        Products m{.row = {}, .stride = product_stride};
        for (int64_t i = 0; i < 4; ++i) {
          m.row[i] = products + kTapsOfPhase[phase][i] * kTaps * product_stride + t * panel;
        }
        T* pixel[kCorners * kPixels];
        image.targets(first + t, phase, channel, scratch.dropped.data(), pixel);
        run_kernel<transform_products<T>>(m, panel, bias + channel, pixel);
      }
    }
  }
}

template <typename V, typename T>
void convolve(const Image<T>& image, const T* taps, const float* bias) {
  const int64_t per_block = winograd_run(image.tiles(), image.x.channels);
  const int64_t blocks = (image.tiles() + per_block - 1) / per_block;
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    Scratch<T, V> scratch(per_block, image.x.channels, winograd_panel(image.out));
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * per_block;
      convolve_tiles(image, taps, bias, first, std::min(per_block, image.tiles() - first), scratch);
    }
  });
}

template <typename T, typename V>
void convolve(const WinogradUpsample& conv, const at::Tensor& x, at::Tensor& y, const Halo& halo) {
  const int64_t height = x.size(2), width = x.size(3), pixels = height * width;
  for (int64_t b = 0; b < x.size(0); ++b) {
    const ImageRows<T> rows{static_cast<const T*>(x.const_data_ptr()) + b * pixels * conv.in_channels,
                            height,
                            height,
                            width,
                            conv.in_channels,
                            halo_row<T>(halo.above, b),
                            halo_row<T>(halo.below, b)};
    const Image<T> image{rows, static_cast<T*>(y.mutable_data_ptr()) + b * 4 * pixels * conv.out_channels,
                         height, width, conv.out_channels};
    convolve<V>(image, static_cast<const T*>(conv.taps.const_data_ptr()), conv.bias.const_data_ptr<float>());
  }
}

}  // namespace

WinogradUpsample::WinogradUpsample(const at::Tensor& weight, const at::Tensor& bias_vector,
                                   at::ScalarType dtype)
    : in_channels(weight.size(1)),
      out_channels(weight.size(0)),
      bias(bias_vector.to(at::kFloat).contiguous()) {
  TESSERA_CHECK(in_channels % 32 == 0 && out_channels % 32 == 0,
                "Winograd needs multiples of 32 channels, got {} to {}", in_channels, out_channels);
  static const WinogradFilter filter = {.g = {{1, 1, 0},
                                              {0.5F, 0.5F, 0.5F},
                                              {0.5F, 0.5F, -0.5F},
                                              {0, 0, 1},
                                              {1, 0, 0},
                                              {0.5F, -0.5F, -0.5F},
                                              {0, 1, 1}},
                                        .order = {1, 2, 0, 3, 5, 4, 6},
                                        .c = {{0, -0.5F, -0.5F, 0, 0, 0, 0},
                                              {0, 0, 0, 0, 0, 0, 0},
                                              {0, 0, 0, 0, 0, 0, 0},
                                              {0, -0.5F, 0.5F, 0, 0, 0, 0},
                                              {0, -0.5F, 0, 0, 0, -0.5F, 0},
                                              {0, 0, 0, 0, 0, 0, 0},
                                              {0, -0.5F, 0, 0, 0, 0.5F, 0}}};
  taps = make_taps(weight, filter, dtype);
}

at::Tensor WinogradUpsample::operator()(const at::Tensor& x, const std::optional<Halo>& halo) const {
  TESSERA_CHECK(x.scalar_type() == taps.scalar_type() && x.size(1) == in_channels,
                "upsampling of {} channels in {} with weights in {}", x.size(1),
                c10::toString(x.scalar_type()), c10::toString(taps.scalar_type()));
  TESSERA_CHECK(x.is_contiguous(at::MemoryFormat::ChannelsLast), "upsampling needs channels-last");
  at::Tensor y = at::empty({x.size(0), out_channels, 2 * x.size(2), 2 * x.size(3)}, x.options(),
                           at::MemoryFormat::ChannelsLast);
  const Halo around = checked_halo(halo, x);
  if (x.scalar_type() == at::kFloat) {
    convolve<float, float>(*this, x, y, around);
  } else if (is_multiplied(at::kBFloat16)) {
    convolve<Bf16, Bf16>(*this, x, y, around);
  } else {
    convolve<Bf16, float>(*this, x, y, around);
  }
  return y;
}

}  // namespace tessera::kernels
