#include "kernels/winograd_tiles.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <iterator>

#include "core/error.h"
#include "kernels/choices.h"
#include "kernels/gemm.h"

namespace tessera::kernels {
namespace {

struct Four {
  float a, b, c, d;
};

// B^T d along one dimension.
TESSERA_INLINE Four spread(float d0, float d1, float d2, float d3) {
  return {d0 - d2, d1 + d2, d2 - d1, d1 - d3};
}

// Stores value - carried in the precision of T and returns the error relative to `value`.
TESSERA_INLINE float store_carried(float* to, float value, float /*carried*/) {
  *to = value;
  return 0.0F;
}
TESSERA_INLINE float store_carried(Bf16* to, float value, float carried) {
  store(to, value - carried);
  return load(*to) - value;
}

// Along one dimension rows 1 and 2 are rounded first, then row 0, shifted by (e1 + e2) / 2, and row 3,
// shifted by (e2 - e1) / 2.
template <typename X, typename T>
TESSERA_INLINE void transform_tile(const WinogradTile<X>& tile, int64_t channels, T* v, int64_t stride) {
  const X* const* p = tile.pixel;
  TESSERA_INDEPENDENT
  for (int64_t c = 0; c < channels; ++c) {
    const Four c0 = spread(load(p[0][c]), load(p[4][c]), load(p[8][c]), load(p[12][c]));
    const Four c1 = spread(load(p[1][c]), load(p[5][c]), load(p[9][c]), load(p[13][c]));
    const Four c2 = spread(load(p[2][c]), load(p[6][c]), load(p[10][c]), load(p[14][c]));
    const Four c3 = spread(load(p[3][c]), load(p[7][c]), load(p[11][c]), load(p[15][c]));
    const Four r0 = spread(c0.a, c1.a, c2.a, c3.a), r1 = spread(c0.b, c1.b, c2.b, c3.b),
               r2 = spread(c0.c, c1.c, c2.c, c3.c), r3 = spread(c0.d, c1.d, c2.d, c3.d);
    T* to = v + c;
    const float e11 = store_carried(to + 5 * stride, r1.b, 0.0F),
                e12 = store_carried(to + 6 * stride, r1.c, 0.0F);
    const float e21 = store_carried(to + 9 * stride, r2.b, 0.0F),
                e22 = store_carried(to + 10 * stride, r2.c, 0.0F);
    const float sum1 = 0.5F * (e11 + e21), sum2 = 0.5F * (e12 + e22);
    const float difference1 = 0.5F * (e21 - e11), difference2 = 0.5F * (e22 - e12);
    const float e01 = store_carried(to + stride, r0.b, sum1),
                e02 = store_carried(to + 2 * stride, r0.c, sum2);
    const float e31 = store_carried(to + 13 * stride, r3.b, difference1);
    const float e32 = store_carried(to + 14 * stride, r3.c, difference2);
    const float e10 = store_carried(to + 4 * stride, r1.a, 0.5F * (e11 + e12));
    const float e13 = store_carried(to + 7 * stride, r1.d, 0.5F * (e12 - e11));
    const float e20 = store_carried(to + 8 * stride, r2.a, 0.5F * (e21 + e22));
    const float e23 = store_carried(to + 11 * stride, r2.d, 0.5F * (e22 - e21));
    const float upper1 = e01 + sum1, upper2 = e02 + sum2;
    const float lower1 = e31 + difference1, lower2 = e32 + difference2;
    store_carried(to, r0.a, 0.5F * (e10 + e20 + upper1 + upper2));
    store_carried(to + 3 * stride, r0.d, 0.5F * (e13 + e23 + upper2 - upper1));
    store_carried(to + 12 * stride, r3.a, 0.5F * (e20 - e10 + lower1 + lower2));
    store_carried(to + 15 * stride, r3.d, 0.5F * (e23 - e13 + lower2 - lower1));
  }
}

// Rounds u [N, pairs of channels] to bf16, tap by tap, and replaces u by the errors.
at::Tensor round_taps(const at::Tensor& u, const WinogradFilter& filter) {
  const int64_t n = std::ssize(filter.order);
  at::Tensor rounded = at::empty_like(u, u.options().dtype(at::kBFloat16));
  for (int64_t first = 0; first < n * n; ++first) {
    const int64_t row = filter.order[first / n], column = filter.order[first % n];
    at::Tensor value = u[row * n + column];
    at::Tensor shifted = value.clone();
    for (int64_t other = 0; other < n * n; ++other) {
      const int64_t i = other / n, j = other % n;
      const float factor = (i == row ? 1.0F : filter.c[row][i]) * (j == column ? 1.0F : filter.c[column][j]);
      // u holds the errors of the taps rounded so far.
      if (other != row * n + column && factor != 0.0F) shifted.sub_(u[other], factor);
    }
    rounded[row * n + column].copy_(shifted);
    value.neg_().add_(rounded[row * n + column]);
  }
  return rounded;
}

}  // namespace

int64_t winograd_panel(int64_t out) {
  return out % 64 == 0 ? 64 : 32;
}

int64_t winograd_run(int64_t tiles, int64_t in) {
  const int64_t most = std::clamp<int64_t>(32768 / in, 8, 64), threads = at::get_num_threads();
  const int64_t rounds = (tiles + most * threads - 1) / (most * threads);
  return std::max<int64_t>(1, (tiles + rounds * threads - 1) / (rounds * threads));
}

at::Tensor make_taps(const at::Tensor& weight, const WinogradFilter& filter, at::ScalarType dtype) {
  const int64_t out = weight.size(0), in = weight.size(1), panel = winograd_panel(out);
  const int64_t n = std::ssize(filter.g);
  const at::Tensor g = at::from_blob(const_cast<std::array<float, 3>*>(filter.g.data()), {n, 3});
  const at::Tensor both = at::kron(g, g);
  const at::Tensor filters = weight.to(at::kFloat).contiguous();
  const bool narrow = dtype != at::kFloat, pairs = narrow && is_multiplied(dtype);
  at::Tensor taps = pairs ? at::empty({n * n, out / panel, in / 2, panel, 2}, filters.options().dtype(dtype))
                          : at::empty({n * n, out / panel, in, panel}, filters.options().dtype(dtype));
  for (int64_t i = 0; i < out / panel; ++i) {
    // Computes G w G^T of every pair of channels as one product: [N, 9] x [9, panel * in].
    at::Tensor u = at::matmul(both, filters.narrow(0, i * panel, panel).reshape({-1, 9}).t());
    if (narrow) u = round_taps(u, filter);
    const at::Tensor to = taps.select(1, i);
    if (pairs) {
      to.copy_(u.view({n * n, panel, in / 2, 2}).permute({0, 2, 1, 3}));
    } else {
      const int64_t columns = choices().panels ? kPanel : panel;
      to.view({n * n, panel / columns, in, columns})
          .copy_(u.view({n * n, panel / columns, columns, in}).transpose(2, 3));
    }
  }
  return taps;
}

void transform_input(const WinogradTile<float>& tile, int64_t channels, float* v, int64_t stride) {
  run_kernel<transform_tile<float, float>>(tile, channels, v, stride);
}
void transform_input(const WinogradTile<float>& tile, int64_t channels, Bf16* v, int64_t stride) {
  run_kernel<transform_tile<float, Bf16>>(tile, channels, v, stride);
}
void transform_input(const WinogradTile<Bf16>& tile, int64_t channels, Bf16* v, int64_t stride) {
  run_kernel<transform_tile<Bf16, Bf16>>(tile, channels, v, stride);
}
void transform_input(const WinogradTile<Bf16>& tile, int64_t channels, float* v, int64_t stride) {
  run_kernel<transform_tile<Bf16, float>>(tile, channels, v, stride);
}

void multiply(const float* a, const float* b, float* c, int64_t rows, int64_t in, int64_t panel,
              float* /*wide*/) {
  if (choices().panels) return gemm(rows, panel, in, a, in, b, in * kPanel, c, panel, /*add=*/false);
  at::native::cpublas::brgemm(rows, panel, in, in, panel, panel, false, a, b, c, false);
}
void multiply(const float* a, const Bf16* b, float* c, int64_t rows, int64_t in, int64_t panel, float* wide) {
  run_kernel<widen<Bf16>>(b, wide, in * panel);
  multiply(a, wide, c, rows, in, panel, nullptr);
}
void multiply(const Bf16* a, const Bf16* b, float* c, int64_t rows, int64_t in, int64_t panel,
              float* /*wide*/) {
  const auto* left = reinterpret_cast<const at::BFloat16*>(a);
  const auto* right = reinterpret_cast<const at::BFloat16*>(b);
  at::native::cpublas::brgemm(rows, panel, in, in, panel, panel, false, left, right, c, true);
}

Halo checked_halo(const std::optional<Halo>& halo, const at::Tensor& x) {
  if (!halo) return {};
  const auto checked = [&](const at::Tensor& row) {
    if (!row.defined()) return row;
    TESSERA_CHECK(row.size(0) == x.size(0) && row.size(1) == x.size(1) && row.size(2) == 1 &&
                      row.size(3) == x.size(3) && row.scalar_type() == x.scalar_type(),
                  "a halo of {} does not fit {}", fmt::join(row.sizes(), " x "), fmt::join(x.sizes(), " x "));
    return row.contiguous(at::MemoryFormat::ChannelsLast);
  };
  return {checked(halo->above), checked(halo->below)};
}

}  // namespace tessera::kernels
