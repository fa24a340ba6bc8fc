#include "nn/winograd.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>

#include "core/cpu.h"
#include "core/error.h"
#include "nn/kernel.h"

namespace tessera::nn {
namespace {

constexpr int64_t kTaps = 16;  // products per tile and pair of channels

// Outputs of one matrix product: it and its transform stay in the second-level cache.
int64_t panel_of(int64_t out) {
  return out % 64 == 0 ? 64 : 32;
}

// Tiles that are transformed together: their 16 matrices fill half a megabyte in bf16.
int64_t tiles_of(int64_t in) {
  return std::clamp<int64_t>(16384 / in, 8, 256);
}

struct Four {
  float a, b, c, d;
};

// B^T d along one dimension.
TESSERA_INLINE Four spread(float d0, float d1, float d2, float d3) {
  return {d0 - d2, d1 + d2, d2 - d1, d1 - d3};
}

// The 4x4 pixels of a tile, row by row; each points to its channels.
template <typename T>
struct Tile {
  const T* pixel[16];
};

// v[tap * stride + c] = (B^T d B)[tap] for every channel.
template <typename T>
TESSERA_INLINE void transform_tile(const Tile<T>& tile, int64_t channels, T* v, int64_t stride) {
  const T* const* p = tile.pixel;
  TESSERA_INDEPENDENT
  for (int64_t c = 0; c < channels; ++c) {
    const Four c0 = spread(load(p[0][c]), load(p[4][c]), load(p[8][c]), load(p[12][c]));
    const Four c1 = spread(load(p[1][c]), load(p[5][c]), load(p[9][c]), load(p[13][c]));
    const Four c2 = spread(load(p[2][c]), load(p[6][c]), load(p[10][c]), load(p[14][c]));
    const Four c3 = spread(load(p[3][c]), load(p[7][c]), load(p[11][c]), load(p[15][c]));
    const Four rows[4] = {spread(c0.a, c1.a, c2.a, c3.a), spread(c0.b, c1.b, c2.b, c3.b),
                          spread(c0.c, c1.c, c2.c, c3.c), spread(c0.d, c1.d, c2.d, c3.d)};
    T* to = v + c;
    store(to, rows[0].a), store(to + stride, rows[0].b);
    store(to + 2 * stride, rows[0].c), store(to + 3 * stride, rows[0].d);
    store(to + 4 * stride, rows[1].a), store(to + 5 * stride, rows[1].b);
    store(to + 6 * stride, rows[1].c), store(to + 7 * stride, rows[1].d);
    store(to + 8 * stride, rows[2].a), store(to + 9 * stride, rows[2].b);
    store(to + 10 * stride, rows[2].c), store(to + 11 * stride, rows[2].d);
    store(to + 12 * stride, rows[3].a), store(to + 13 * stride, rows[3].b);
    store(to + 14 * stride, rows[3].c), store(to + 15 * stride, rows[3].d);
  }
}

TESSERA_KERNEL void transform_input(const Tile<float>& tile, int64_t channels, float* v, int64_t stride) {
  transform_tile(tile, channels, v, stride);
}
TESSERA_KERNEL void transform_input(const Tile<Bf16>& tile, int64_t channels, Bf16* v, int64_t stride) {
  transform_tile(tile, channels, v, stride);
}

// Where the 2x2 outputs of a tile go.
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

// pixel = A^T m A + bias, or pixel += that, for every channel of a panel; m[tap * stride + c].
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

TESSERA_KERNEL void set_output(const float* m, int64_t stride, int64_t channels, const float* bias,
                               const Target<float>& target) {
  transform_products<false>(m, stride, channels, bias, target);
}
TESSERA_KERNEL void set_output(const float* m, int64_t stride, int64_t channels, const float* bias,
                               const Target<Bf16>& target) {
  transform_products<false>(m, stride, channels, bias, target);
}
TESSERA_KERNEL void add_output(const float* m, int64_t stride, int64_t channels, const float* bias,
                               const Target<float>& target) {
  transform_products<true>(m, stride, channels, bias, target);
}
TESSERA_KERNEL void add_output(const float* m, int64_t stride, int64_t channels, const float* bias,
                               const Target<Bf16>& target) {
  transform_products<true>(m, stride, channels, bias, target);
}

// c [rows, panel] = a [rows, in] * b [in, panel].
void multiply(const float* a, const float* b, float* c, int64_t rows, int64_t in, int64_t panel) {
  at::native::cpublas::brgemm(rows, panel, in, in, panel, panel, false, a, b, c, false);
}
void multiply(const Bf16* a, const Bf16* b, float* c, int64_t rows, int64_t in, int64_t panel) {
  const auto* left = reinterpret_cast<const at::BFloat16*>(a);
  const auto* right = reinterpret_cast<const at::BFloat16*>(b);
  at::native::cpublas::brgemm(rows, panel, in, in, panel, panel, false, left, right, c, true);
}

// One sample: x [height, width, in], y [height, width, out].
template <typename T>
struct Image {
  const T* x;
  T* y;
  int64_t height, width, in, out;

  int64_t tile_columns() const { return (width + 1) / 2; }
  int64_t tiles() const { return (height + 1) / 2 * tile_columns(); }

  // Pixels outside the image are zero.
  Tile<T> tile(int64_t index, const T* zeros) const {
    const int64_t top = index / tile_columns() * 2 - 1, left = index % tile_columns() * 2 - 1;
    Tile<T> result;
    for (int64_t i = 0; i < 16; ++i) {
      const int64_t row = top + i / 4, column = left + i % 4;
      const bool inside = row >= 0 && row < height && column >= 0 && column < width;
      result.pixel[i] = inside ? x + (row * width + column) * in : zeros;
    }
    return result;
  }

  // Channels from `channel` on. What lies outside the image goes to `dropped` (4 panels).
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

// What a thread needs for a run of tiles.
template <typename T>
struct Scratch {
  Scratch(int64_t tiles, int64_t in, int64_t panel)
      : input(kTaps * tiles * in), products(kTaps * tiles * panel), zeros(in), dropped(4 * panel) {}
  std::vector<T> input;         // [16, tiles, in]
  std::vector<float> products;  // [16, tiles, panel]
  std::vector<T> zeros, dropped;
};

template <typename T>
void convolve_tiles(const Image<T>& image, const T* taps, const float* bias, bool add, int64_t first,
                    int64_t count, Scratch<T>& scratch) {
  const int64_t panel = panel_of(image.out);
  const int64_t stride = count * image.in;
  for (int64_t t = 0; t < count; ++t) {
    transform_input(image.tile(first + t, scratch.zeros.data()), image.in,
                    scratch.input.data() + t * image.in, stride);
  }
  float* products = scratch.products.data();
  for (int64_t channel = 0; channel < image.out; channel += panel) {
    for (int64_t tap = 0; tap < kTaps; ++tap) {
      multiply(scratch.input.data() + tap * stride, taps + (tap * image.out + channel) * image.in,
               products + tap * count * panel, count, image.in, panel);
    }
    for (int64_t t = 0; t < count; ++t) {
      const Target<T> target = image.target(first + t, channel, scratch.dropped.data(), panel);
      const auto* tile_products = products + t * panel;
      if (add) {
        add_output(tile_products, count * panel, panel, bias + channel, target);
      } else {
        set_output(tile_products, count * panel, panel, bias + channel, target);
      }
    }
  }
}

template <typename T>
void convolve(const Image<T>& image, const T* taps, const float* bias, bool add) {
  const int64_t per_block = tiles_of(image.in);
  const int64_t blocks = (image.tiles() + per_block - 1) / per_block;
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    Scratch<T> scratch(per_block, image.in, panel_of(image.out));
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * per_block;
      convolve_tiles(image, taps, bias, add, first, std::min(per_block, image.tiles() - first), scratch);
    }
  });
}

template <typename T>
void convolve(const Winograd& conv, const at::Tensor& x, at::Tensor& y, bool add) {
  const int64_t pixels = x.size(2) * x.size(3);
  for (int64_t b = 0; b < x.size(0); ++b) {
    const Image<T> image{static_cast<const T*>(x.const_data_ptr()) + b * pixels * conv.in_channels,
                         static_cast<T*>(y.mutable_data_ptr()) + b * pixels * conv.out_channels,
                         x.size(2),
                         x.size(3),
                         conv.in_channels,
                         conv.out_channels};
    convolve(image, static_cast<const T*>(conv.taps.const_data_ptr()), conv.bias.const_data_ptr<float>(),
             add);
  }
}

}  // namespace

bool winograd_is_faster(int64_t in, int64_t out, at::ScalarType dtype, at::Device device) {
  if (!device.is_cpu() || !cpu_has_avx512() || in < 64 || out < 64 || in % 32 != 0 || out % 32 != 0)
    return false;
  return dtype == at::kFloat || (dtype == at::kBFloat16 && cpu_has_bf16() && !cpu_has_amx_bf16());
}

Winograd::Winograd(const at::Tensor& weight, const at::Tensor& bias_vector, at::ScalarType dtype)
    : in_channels(weight.size(1)),
      out_channels(weight.size(0)),
      bias(bias_vector.to(at::kFloat).contiguous()) {
  TESSERA_CHECK(in_channels % 32 == 0 && out_channels % 32 == 0, "{} channels to {}", in_channels,
                out_channels);
  const at::Tensor g =
      at::tensor({1.0F, 0.0F, 0.0F, 0.5F, 0.5F, 0.5F, 0.5F, -0.5F, 0.5F, 0.0F, 0.0F, 1.0F}).view({4, 3});
  // G w G^T of every pair of channels as one product: [out * in, 9] x [9, 16].
  const at::Tensor u = at::matmul(weight.to(at::kFloat).reshape({-1, 9}), at::kron(g, g).t()).to(dtype);
  const int64_t panel = panel_of(out_channels);
  const at::Tensor panels = u.view({out_channels / panel, panel, in_channels, kTaps});
  taps = dtype == at::kBFloat16
             ? panels.unflatten(2, {in_channels / 2, 2}).permute({4, 0, 2, 1, 3}).contiguous()
             : panels.permute({3, 0, 2, 1}).contiguous();
}

void Winograd::operator()(const at::Tensor& x, at::Tensor& y, bool add) const {
  TESSERA_CHECK(x.scalar_type() == taps.scalar_type() && y.scalar_type() == taps.scalar_type(),
                "convolution of {} in {}", c10::toString(x.scalar_type()), c10::toString(taps.scalar_type()));
  if (taps.scalar_type() == at::kFloat) {
    convolve<float>(*this, x, y, add);
  } else {
    convolve<Bf16>(*this, x, y, add);
  }
}

}  // namespace tessera::nn
