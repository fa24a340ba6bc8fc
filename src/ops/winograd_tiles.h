// What convolutions by minimal filtering share: the transform of 4x4 input tiles, and the products of the
// transformed tiles with the transformed weights ("taps").
//
// Shapes: T tiles, I and O channels, P channels of a panel: outputs that are computed together.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "ops/halo.h"
#include "ops/kernel.h"

namespace tessera::ops {

// P: one product and its transform stay in the second-level cache.
int64_t winograd_panel(int64_t out);

// How many of an image's tiles are transformed and multiplied together: 64, where their 16 matrices fill a
// megabyte at most in bf16, but so few that the runs are about equal and every thread has as many.
int64_t winograd_run(int64_t tiles, int64_t in);

// How the taps of one dimension come from a filter, and what their roundings to bf16 owe each other.
//
// White inputs turn rounding errors e of the taps into a mean square error e^T M e of the results, with
// M = (A A^T) o (B^T B) for each dimension. As M is not diagonal, errors can cancel: e^T M e is the sum of
// d_i (e_i + sum of c_ij e_j over earlier j)^2 with constants d and c (M = C^T D C), so a tap that is rounded
// after others is first shifted by what makes up for their errors. The order is the best of all.
struct WinogradFilter {
  std::vector<std::array<float, 3>> g;  // G, a row for each tap
  std::vector<int64_t> order;           // in which taps are rounded
  std::vector<std::vector<float>> c;    // [tap, tap]; 0 for the tap itself and those that come later
};

// The taps of weight [O, I, 3, 3] (fp32) in `dtype`, N for each pair of channels, as products take them:
// [N, O / P, I, P]; where bf16 is multiplied two rows of I lie interleaved, [N, O / P, I / 2, P, 2]. Where
// choices() has panels, P is cut into these: [N, O / P, P / 16, I, 16].
at::Tensor make_taps(const at::Tensor& weight, const WinogradFilter& filter, at::ScalarType dtype);

// The 4x4 pixels of a tile, row by row; each points to its channels.
template <typename T>
struct WinogradTile {
  const T* pixel[16];
};

// The rows of an image [height, width, channels], of which x holds `held` in turn: row r at r modulo `held`.
// Those around it are null at the edges of the picture, where zeros are.
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

// The tile whose upper left pixel is (top, left). Pixels outside are `zeros`.
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

// A halo of one row on each side of x, such that pointers to a sample's are to [W, C]; checked.
Halo checked_halo(const std::optional<Halo>& halo, const at::Tensor& x);

// The row of a sample that a halo gives, null where it has none.
template <typename T>
const T* halo_row(const at::Tensor& halo, int64_t b) {
  return halo.defined() ? static_cast<const T*>(halo.const_data_ptr()) + b * halo.stride(0) : nullptr;
}

// v[tap * stride + c] = (B^T d B)[tap] of every channel, with the rows of B^T d being d0 - d2, d1 + d2,
// d2 - d1 and d1 - d3: both F(2, 3) and F(3, 2) with the points 0, 1, -1 and infinity take it. Roundings to
// bf16 make up for each other as those of taps do, here with M = (A A^T) o (G G^T); this takes 0.36 off the
// mean square error.
void transform_input(const WinogradTile<float>& tile, int64_t channels, float* v, int64_t stride);
void transform_input(const WinogradTile<float>& tile, int64_t channels, Bf16* v, int64_t stride);
void transform_input(const WinogradTile<Bf16>& tile, int64_t channels, Bf16* v, int64_t stride);
void transform_input(const WinogradTile<Bf16>& tile, int64_t channels, float* v, int64_t stride);

// c [rows, P] = a [rows, in] * b [in, P], b as make_taps lays it out. Narrow taps are widened in `wide` [in,
// P], which the others do not touch.
void multiply(const float* a, const float* b, float* c, int64_t rows, int64_t in, int64_t panel, float* wide);
void multiply(const float* a, const Bf16* b, float* c, int64_t rows, int64_t in, int64_t panel, float* wide);
void multiply(const Bf16* a, const Bf16* b, float* c, int64_t rows, int64_t in, int64_t panel, float* wide);

}  // namespace tessera::ops
