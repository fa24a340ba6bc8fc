#include "kernels/attention_panels.h"

#include <algorithm>
#include <cmath>

#include "kernels/gemm.h"

namespace tessera::kernels {
namespace {

// 2^x for x <= 0, at least 2^-126, as a polynomial for 2^(x - n) times 2^n, where n is the integer nearest to
// x. The polynomial is minimax in relative error on [-1/2, 1/2]: 7.5e-8.
TESSERA_INLINE float exp2_nonpositive(float x) {
  constexpr float kRound = 12582912.0F;  // as in exp_approximate
  x = x < -126.0F ? -126.0F : x;
  const float shifted = x + kRound;
  const float r = x - (shifted - kRound);
  float p = r * 0.001327647245F + 0.009675541893F;
  p = p * r + 0.05550713092F;
  p = p * r + 0.2402212024F;
  p = p * r + 0.693146944F;
  p = p * r + 1.000000119F;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(shifted) << 23));
}

// Turns one row of scores into probabilities and returns their sum.
TESSERA_INLINE float softmax_row(const float* score, float* probability, int64_t keys, float scale,
                                 float maximum) {
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t j = 0; j < keys; ++j) {
    const float p = exp2_nonpositive((score[j] - maximum) * scale);  // see exponential() for AVX-512
    probability[j] = p;
    total += p;
  }
  return total;
}

TESSERA_INLINE float largest(const float* score, int64_t keys) {
  float result = -INFINITY;
#pragma omp simd reduction(max : result)
  for (int64_t j = 0; j < keys; ++j) result = result < score[j] ? score[j] : result;
  return result;
}

TESSERA_INLINE void scale_row(const float* from, float* to, int64_t count, float factor) {
  TESSERA_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) to[i] = from[i] * factor;
}

TESSERA_INLINE void softmax_rows(const float* scores, float* probabilities, const SoftmaxState& state,
                                 int64_t rows, int64_t keys, int64_t columns, float scale) {
  for (int64_t row = 0; row < rows; ++row) {
    const float before = state.maxima[row];
    const float highest = largest(scores + row * columns, keys);
    const float maximum = highest > before ? highest : before;
    const float total =
        softmax_row(scores + row * columns, probabilities + row * columns, keys, scale, maximum);
    if (maximum != before && before != -INFINITY) {  // earlier blocks are relative to a smaller maximum
      const float shrink = std::exp2((before - maximum) * scale);
      scale_row(state.sums + row * state.depth, state.sums + row * state.depth, state.depth, shrink);
      state.totals[row] *= shrink;
    }
    state.maxima[row] = maximum;
    state.totals[row] += total;
  }
}

TESSERA_INLINE void normalise_rows(const SoftmaxState& state, float* out, int64_t stride, int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) {
    scale_row(state.sums + row * state.depth, out + row * stride, state.depth, 1.0F / state.totals[row]);
  }
}

// Stores the same element of 16 keys side by side.
TESSERA_INLINE void pack_keys_of_panel(const float* k, int64_t stride, int64_t keys, int64_t depth,
                                       float* panel) {
  for (int64_t d = 0; d < depth; ++d) {
    for (int64_t j = 0; j < keys; ++j) panel[d * kPanel + j] = k[j * stride + d];
  }
}

}  // namespace

void pack_key_panels(const float* k, int64_t stride, int64_t keys, int64_t depth, int64_t place,
                     float* packed) {
  for (int64_t key = 0; key < keys;) {
    const int64_t column = (place + key) % kPanel, here = std::min(kPanel - column, keys - key);
    run_kernel<pack_keys_of_panel>(k + key * stride, stride, here, depth,
                                   packed + (place + key - column) * depth + column);
    key += here;
  }
}

void pack_value_panels(const float* v, int64_t stride, int64_t keys, int64_t depth, int64_t rows,
                       int64_t place, float* packed) {
  for (int64_t d = 0; d < depth; d += kPanel) {
    float* const panel = packed + d * rows + place * kPanel;
    const int64_t columns = std::min(kPanel, depth - d);
    for (int64_t key = 0; key < keys; ++key) std::copy_n(v + key * stride + d, columns, panel + key * kPanel);
  }
}

void softmax_loop(const float* scores, float* probabilities, const SoftmaxState& state, int64_t rows,
                  int64_t keys, int64_t columns, float scale) {
  run_kernel<softmax_rows>(scores, probabilities, state, rows, keys, columns, scale);
}

void normalise_loop(const SoftmaxState& state, float* out, int64_t stride, int64_t rows) {
  run_kernel<normalise_rows>(state, out, stride, rows);
}

}  // namespace tessera::kernels
