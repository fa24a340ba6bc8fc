// Common parts of convolutions by minimal filtering: the transform of 4x4 input tiles, and the products of
// the transformed tiles with the transformed weights ("taps").
//
// Shapes: T tiles, I and O channels, P output channels of a panel, which are computed together.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/halo.h"
#include "kernels/kernel.h"

namespace tessera::kernels {

// P, chosen so that one product and its transform stay in the second-level cache.
int64_t winograd_panel(int64_t out);

// The number of an image's tiles that are transformed and multiplied together: at most 64, fewer if their 16
// matrices would exceed 1 MiB in bf16, and such that the runs are about equal and every thread gets the same
// number.
int64_t winograd_run(int64_t tiles, int64_t in);

// How the taps of one dimension derive from a filter, and how their roundings to bf16 compensate for each
// other.
//
// With white inputs, rounding errors e of the taps cause a mean square error e^T M e of the results, with M =
// (A A^T) o (B^T B) for each dimension. Because M is not diagonal, errors can cancel: e^T M e is the sum of
// d_i (e_i + sum of c_ij e_j over earlier j)^2 with constants d and c (M = C^T D C). Each tap is therefore
// shifted before rounding, to compensate for the errors of taps rounded earlier. The order is the best
// possible.
struct WinogradFilter {
  std::vector<std::array<float, 3>> g;  // G, one row per tap
  std::vector<int64_t> order;           // the order in which taps are rounded
  std::vector<std::vector<float>> c;    // [tap, tap]; 0 for the tap itself and for those rounded later
};

// The taps of weight [O, I, 3, 3] (fp32) in `dtype`, N for each pair of channels, in the layout that products
// read: [N, O / P, I, P]; if bf16 is multiplied, with two rows of I interleaved, [N, O / P, I / 2, P, 2]. If
// choices() has panels, P is divided into them: [N, O / P, P / 16, I, 16].
at::Tensor make_taps(const at::Tensor& weight, const WinogradFilter& filter, at::ScalarType dtype);

// The 4x4 pixels of a tile, row by row; each points to its channels.
template <typename T>
struct WinogradTile {
  const T* pixel[16];
};

// The rows of an image [height, width, channels] in x, which is a ring of `held` rows: row r is at r modulo
// `held`. `above` and `below` are null at the edges of the image, which are padded with zeros.
template <typename T>
struct ImageRows {
  const T* x;
  int64_t held, height, width, channels;
  const T *above, *below;

  const T* row(int64_t r) const {
    if (r >= 0 && r < height) return x + r % held * width * channels;
    return r == -1 ? above : r == height ? below : nullptr;
  }
};

// The tile whose upper left pixel is (top, left). Pixels outside the image point to `zeros`.
template <typename T>
WinogradTile<T> winograd_tile(const ImageRows<T>& rows, int64_t top, int64_t left, const T* zeros) {
  WinogradTile<T> tile;
  for (int64_t i = 0; i < 4; ++i) {
    const T* const row = rows.row(top + i);
    for (int64_t j = 0; j < 4; ++j) {
      const bool inside = row != nullptr && left + j >= 0 && left + j < rows.width;
      tile.pixel[4 * i + j] = inside ? row + (left + j) * rows.channels : zeros;
    }
  }
  return tile;
}

// Checks that `halo` has one row on each side of x, and makes it contiguous in channels-last, so that a
// sample's row is [W, C].
Halo checked_halo(const std::optional<Halo>& halo, const at::Tensor& x);

// The row of sample b in one side of a halo, or null if that is undefined.
template <typename T>
const T* halo_row(const at::Tensor& halo, int64_t b) {
  return halo.defined() ? static_cast<const T*>(halo.const_data_ptr()) + b * halo.stride(0) : nullptr;
}

// v[tap * stride + c] = (B^T d B)[tap] of every channel. The rows of B^T d are d0 - d2, d1 + d2, d2 - d1 and
// d1 - d3, which serve both F(2, 3) and F(3, 2) with the points 0, 1, -1 and infinity. Roundings to bf16
// compensate for each other like those of taps, here with M = (A A^T) o (G G^T); this removes 0.36 of the
// mean square error.
void transform_input(const WinogradTile<float>& tile, int64_t channels, float* v, int64_t stride);
void transform_input(const WinogradTile<float>& tile, int64_t channels, Bf16* v, int64_t stride);
void transform_input(const WinogradTile<Bf16>& tile, int64_t channels, Bf16* v, int64_t stride);
void transform_input(const WinogradTile<Bf16>& tile, int64_t channels, float* v, int64_t stride);

// c [rows, P] = a [rows, in] * b [in, P], with b in the layout of make_taps(). Narrow taps are widened into
// `wide` [in, P], which the other overloads ignore.
void multiply(const float* a, const float* b, float* c, int64_t rows, int64_t in, int64_t panel, float* wide);
void multiply(const float* a, const Bf16* b, float* c, int64_t rows, int64_t in, int64_t panel, float* wide);
void multiply(const Bf16* a, const Bf16* b, float* c, int64_t rows, int64_t in, int64_t panel, float* wide);

}  // namespace tessera::kernels
