#include "kernels/attention_avx512.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cmath>

// All functions have the same target, so that helpers can be inlined. fp32 code contains no AVX512-BF16
// instructions, because the compiler emits these only for their intrinsics.
#define TESSERA_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")))

namespace tessera::kernels {
namespace {

constexpr int64_t kLanes = 16;  // fp32 elements, or pairs of bf16, per register

TESSERA_AVX512 inline __mmask16 first_lanes(int64_t count) {
  return static_cast<__mmask16>(count >= kLanes ? 0xffffU : (1U << std::max<int64_t>(count, 0)) - 1U);
}
TESSERA_AVX512 inline __mmask32 first_halves(int64_t count) {
  return static_cast<__mmask32>(count >= 2 * kLanes ? 0xffffffffU : (1U << std::max<int64_t>(count, 0)) - 1U);
}

// Loads 16 lanes of 32 bits; the row has only `count` elements left, and the other lanes become zero.
TESSERA_AVX512 inline __m512i load_lanes(const float* from, int64_t count) {
  return _mm512_maskz_loadu_epi32(first_lanes(count), from);
}
TESSERA_AVX512 inline __m512i load_lanes(const Bf16* from, int64_t count) {
  return _mm512_maskz_loadu_epi16(first_halves(count), from);
}

// Transposes 16 x 16 lanes.
TESSERA_AVX512 inline void transpose(__m512i (&x)[kLanes]) {
  __m512i y[kLanes];
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {  // quarters of registers i, i + 4, i + 8, i + 12
    y[i] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
    y[i + 4] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
    y[i + 8] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
    y[i + 12] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0x88);
    x[i + 8] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0xdd);
    x[i + 4] = _mm512_shuffle_i32x4(y[i + 4], y[i + 12], 0x88);
    x[i + 12] = _mm512_shuffle_i32x4(y[i + 4], y[i + 12], 0xdd);
  }
}

// Transposes k into `packed`. A lane is one fp32 element or one pair of bf16.
template <typename T>
TESSERA_AVX512 void transpose_lanes(const T* k, int64_t stride, int64_t keys, int64_t depth, int64_t columns,
                                    T* packed) {
  constexpr int64_t kElements = static_cast<int64_t>(4 / sizeof(T));  // per lane
  const int64_t lanes = (depth + kElements - 1) / kElements;
  for (int64_t key = 0; key < keys; key += kLanes) {
    const int64_t rows = std::min(kLanes, keys - key);
    for (int64_t lane = 0; lane < lanes; lane += kLanes) {
      __m512i x[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) {
        x[i] = i < rows ? load_lanes(k + (key + i) * stride + lane * kElements, depth - lane * kElements)
                        : _mm512_setzero_si512();
      }
      transpose(x);
      const int64_t used = std::min(kLanes, lanes - lane);
      for (int64_t i = 0; i < used; ++i) {
        _mm512_mask_storeu_epi32(packed + ((lane + i) * columns + key) * kElements, first_lanes(rows), x[i]);
      }
    }
  }
}

// 2^x for x <= 0 (0 below the smallest number), as a polynomial for 2^(x - floor(x)) times 2^floor(x). The
// polynomials are minimax in relative error: 7.5e-8 for fp32 results, and 7.5e-5 for results that are rounded
// to bf16 (2^-9) anyway.
TESSERA_AVX512 inline __m512 exp2_nonpositive(__m512 x, const float* /*fp32*/) {
  const __m512 r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 p = _mm512_fmadd_ps(r, _mm512_set1_ps(0.0018775767F), _mm512_set1_ps(0.0089893397F));
  p = _mm512_fmadd_ps(r, p, _mm512_set1_ps(0.0558263175F));
  p = _mm512_fmadd_ps(r, p, _mm512_set1_ps(0.2401536107F));
  p = _mm512_fmadd_ps(r, p, _mm512_set1_ps(0.6931530833F));
  p = _mm512_fmadd_ps(r, p, _mm512_set1_ps(0.9999999404F));
  return _mm512_scalef_ps(p, x);
}
TESSERA_AVX512 inline __m512 exp2_nonpositive(__m512 x, const Bf16* /*bf16*/) {
  const __m512 r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 p = _mm512_fmadd_ps(r, _mm512_set1_ps(0.0780245215F), _mm512_set1_ps(0.2260671556F));
  p = _mm512_fmadd_ps(r, p, _mm512_set1_ps(0.6958335638F));
  p = _mm512_fmadd_ps(r, p, _mm512_set1_ps(0.9999251962F));
  return _mm512_scalef_ps(p, x);
}

TESSERA_AVX512 inline void store_lanes(float* to, int64_t count, __m512 x) {
  _mm512_mask_storeu_ps(to, first_lanes(count), x);
}
TESSERA_AVX512 inline void store_lanes(Bf16* to, int64_t count, __m512 x) {
  _mm256_mask_storeu_epi16(to, first_lanes(count), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
}
TESSERA_AVX512 inline void store_two(float* to, __m512 x, __m512 y) {
  _mm512_storeu_ps(to, x);
  _mm512_storeu_ps(to + kLanes, y);
}
TESSERA_AVX512 inline void store_two(Bf16* to, __m512 x, __m512 y) {
  _mm512_storeu_si512(to, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(y, x)));
}

TESSERA_AVX512 inline float largest(const float* score, int64_t keys) {
  const __m512 none = _mm512_set1_ps(-INFINITY);
  __m512 a = none, b = none, c = none, d = none;
  int64_t j = 0;
  for (; j + 4 * kLanes <= keys; j += 4 * kLanes) {
    a = _mm512_max_ps(a, _mm512_loadu_ps(score + j));
    b = _mm512_max_ps(b, _mm512_loadu_ps(score + j + kLanes));
    c = _mm512_max_ps(c, _mm512_loadu_ps(score + j + 2 * kLanes));
    d = _mm512_max_ps(d, _mm512_loadu_ps(score + j + 3 * kLanes));
  }
  for (; j < keys; j += kLanes) {
    a = _mm512_max_ps(a, _mm512_mask_loadu_ps(none, first_lanes(keys - j), score + j));
  }
  return _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d)));
}

TESSERA_AVX512 inline void shrink_row(float* sum, int64_t depth, float factor) {
  const __m512 factors = _mm512_set1_ps(factor);
  for (int64_t d = 0; d < depth; d += kLanes) {
    const __mmask16 mask = first_lanes(depth - d);
    _mm512_mask_storeu_ps(sum + d, mask, _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, sum + d), factors));
  }
}

// 2^((score - maximum) * scale). Multiplying each by the scale before subtracting would cause a rounding
// error of more than 1 for scores from 2^24 on.
template <typename T>
TESSERA_AVX512 inline __m512 exponential(__m512 score, __m512 maximum, __m512 scale, const T* type) {
  return exp2_nonpositive(_mm512_mul_ps(_mm512_sub_ps(score, maximum), scale), type);
}

template <typename T>
TESSERA_AVX512 void softmax_rows(const float* scores, T* probabilities, const SoftmaxState& state,
                                 int64_t rows, int64_t keys, int64_t columns, float scale) {
  const __m512 scales = _mm512_set1_ps(scale);
  for (int64_t row = 0; row < rows; ++row) {
    const float* score = scores + row * columns;
    T* probability = probabilities + row * columns;
    const float before = state.maxima[row];
    const float maximum = std::max(before, largest(score, keys));
    const __m512 maxima = _mm512_set1_ps(maximum);
    __m512 total = _mm512_setzero_ps(), other_total = _mm512_setzero_ps();
    int64_t j = 0;
    for (; j + 2 * kLanes <= keys; j += 2 * kLanes) {
      const __m512 x = exponential(_mm512_loadu_ps(score + j), maxima, scales, probability);
      const __m512 y = exponential(_mm512_loadu_ps(score + j + kLanes), maxima, scales, probability);
      total = _mm512_add_ps(total, x);
      other_total = _mm512_add_ps(other_total, y);
      store_two(probability + j, x, y);
    }
    for (; j < keys; j += kLanes) {
      const __mmask16 mask = first_lanes(keys - j);
      const __m512 s = _mm512_maskz_loadu_ps(mask, score + j);
      const __m512 x = _mm512_maskz_mov_ps(mask, exponential(s, maxima, scales, probability));
      total = _mm512_add_ps(total, x);
      store_lanes(probability + j, keys - j, x);
    }
    for (j = keys; j < columns; ++j) probability[j] = 0;
    if (maximum != before && before != -INFINITY) {  // earlier blocks are relative to a smaller maximum
      const float shrink = std::exp2((before - maximum) * scale);
      shrink_row(state.sums + row * state.depth, state.depth, shrink);
      state.totals[row] *= shrink;
    }
    state.maxima[row] = maximum;
    state.totals[row] += _mm512_reduce_add_ps(_mm512_add_ps(total, other_total));
  }
}

template <typename T>
TESSERA_AVX512 void normalise_rows(const SoftmaxState& state, T* out, int64_t stride, int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* sum = state.sums + row * state.depth;
    const __m512 factor = _mm512_set1_ps(1.0F / state.totals[row]);
    for (int64_t d = 0; d < state.depth; d += kLanes) {
      const __m512 x = _mm512_maskz_loadu_ps(first_lanes(state.depth - d), sum + d);
      store_lanes(out + row * stride + d, state.depth - d, _mm512_mul_ps(x, factor));
    }
  }
}

}  // namespace

void transpose_keys(const float* k, int64_t stride, int64_t keys, int64_t depth, int64_t columns,
                    float* packed) {
  transpose_lanes(k, stride, keys, depth, columns, packed);
}
void transpose_keys(const Bf16* k, int64_t stride, int64_t keys, int64_t depth, int64_t columns,
                    Bf16* packed) {
  transpose_lanes(k, stride, keys, depth, columns, packed);
}

TESSERA_AVX512 void pack_value_pairs(const Bf16* v, int64_t stride, int64_t keys, int64_t depth,
                                     int64_t place, Bf16* packed) {
  // Element d of a key is at 2 * d, or 2 * d + 1, of its pair.
  const auto pack_one = [&](int64_t key) {
    Bf16* const pair = packed + (place + key) / 2 * 2 * depth + (place + key) % 2;
    for (int64_t d = 0; d < depth; ++d) pair[2 * d] = v[key * stride + d];
  };
  int64_t key = 0;
  if (place % 2 != 0 && keys > 0) pack_one(key++);
  for (; key + 1 < keys; key += 2) {
    for (int64_t d = 0; d < depth; d += kLanes) {
      const __mmask16 mask = first_lanes(depth - d);
      const __m256i first = _mm256_maskz_loadu_epi16(mask, v + key * stride + d);
      const __m256i second = _mm256_maskz_loadu_epi16(mask, v + (key + 1) * stride + d);
      const __m512i pairs =
          _mm512_or_si512(_mm512_cvtepu16_epi32(first), _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16));
      _mm512_mask_storeu_epi32(packed + (place + key) * depth + 2 * d, mask, pairs);
    }
  }
  if (key < keys) pack_one(key);
}

void softmax_avx512(const float* scores, float* probabilities, const SoftmaxState& state, int64_t rows,
                    int64_t keys, int64_t columns, float scale) {
  softmax_rows(scores, probabilities, state, rows, keys, columns, scale);
}
void softmax_avx512(const float* scores, Bf16* probabilities, const SoftmaxState& state, int64_t rows,
                    int64_t keys, int64_t columns, float scale) {
  softmax_rows(scores, probabilities, state, rows, keys, columns, scale);
}

void normalise_avx512(const SoftmaxState& state, float* out, int64_t stride, int64_t rows) {
  normalise_rows(state, out, stride, rows);
}
void normalise_avx512(const SoftmaxState& state, Bf16* out, int64_t stride, int64_t rows) {
  normalise_rows(state, out, stride, rows);
}

}  // namespace tessera::kernels

#endif
