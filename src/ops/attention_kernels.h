// The parts of the attention kernel that are not products: packing of keys and values, the online softmax,
// the last division. fp32 on AVX2 and AVX-512; bf16 wants AVX512-BF16. Callers ask attention_kernels_run()
// first.
//
// A block is `rows` queries against `keys` keys. What lies side by side for the products: fp32 plain rows, or
// panels of ops/gemm.h where choices() says so; bf16 pairs of a column's elements beside each other ("VNNI"),
// [K / 2, N, 2].
#pragma once

#include <ATen/core/ScalarType.h>

#include <cstdint>

#include "ops/kernel.h"

namespace tessera::ops {

// Whether this machine has the kernels for the dtype.
bool attention_kernels_run(at::ScalarType dtype);

// k [keys, depth], rows `stride` apart -> columns [place, place + keys) of k^T: [depth, columns], or as
// panels; bf16 [depth rounded up to pairs / 2, columns, 2], an odd last element paired with zero. Other
// columns stay as they are.
void pack_keys(const float* k, int64_t stride, int64_t keys, int64_t depth, int64_t columns, int64_t place,
               float* packed);
void pack_keys(const Bf16* k, int64_t stride, int64_t keys, int64_t depth, int64_t columns, int64_t place,
               Bf16* packed);

// v [keys, depth] -> rows [place, place + keys) of [columns, depth], or of the panels of `columns` rows; bf16
// [columns / 2, depth, 2]. The other key of a pair at either end stays as it is; one past the last place of
// all must be zeros.
void pack_values(const float* v, int64_t stride, int64_t keys, int64_t depth, int64_t columns, int64_t place,
                 float* packed);
void pack_values(const Bf16* v, int64_t stride, int64_t keys, int64_t depth, int64_t columns, int64_t place,
                 Bf16* packed);

// Where the softmax of each row stands: the largest score so far times `scale`, and the sum of 2^(score *
// scale - maximum). `sums` [rows, depth] are made relative to the new maximum where it changes.
struct SoftmaxState {
  float *maxima, *totals, *sums;
  int64_t depth;
};

// scores [rows, columns] -> probabilities [rows, columns] = 2^(score * scale - maximum), columns past `keys`
// zero.
void softmax_block(const float* scores, float* probabilities, const SoftmaxState& state, int64_t rows,
                   int64_t keys, int64_t columns, float scale);
void softmax_block(const float* scores, Bf16* probabilities, const SoftmaxState& state, int64_t rows,
                   int64_t keys, int64_t columns, float scale);

// out[row * stride + d] = sums[row, d] / totals[row]
void normalise_block(const SoftmaxState& state, float* out, int64_t stride, int64_t rows);
void normalise_block(const SoftmaxState& state, Bf16* out, int64_t stride, int64_t rows);

}  // namespace tessera::ops
