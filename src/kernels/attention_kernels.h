// The parts of the attention kernel that are not products: packing of keys and values, the online softmax and
// the final division. fp32 needs AVX2 or AVX-512, bf16 needs AVX512-BF16. Callers must check
// attention_kernels_run() first.
//
// A block is `rows` queries times `keys` keys. The layout that products read is, for fp32, plain rows, or the
// panels of kernels/gemm.h if choices() says so; for bf16, pairs of elements of a column side by side
// ("VNNI"), [K / 2, N, 2].
#pragma once

#include <ATen/core/ScalarType.h>

#include <cstdint>

#include "kernels/kernel.h"

namespace tessera::kernels {

// Whether this machine can run the kernels for the dtype.
bool attention_kernels_run(at::ScalarType dtype);

// Packs k [keys, depth], whose rows are `stride` apart, into columns [place, place + keys) of k^T: [depth,
// columns], or panels; for bf16 [depth rounded up to pairs / 2, columns, 2], with an odd last element paired
// with zero. Other columns are left unchanged.
void pack_keys(const float* k, int64_t stride, int64_t keys, int64_t depth, int64_t columns, int64_t place,
               float* packed);
void pack_keys(const Bf16* k, int64_t stride, int64_t keys, int64_t depth, int64_t columns, int64_t place,
               Bf16* packed);

// Packs v [keys, depth] into rows [place, place + keys) of [columns, depth], or of panels of `columns` rows;
// for bf16 [columns / 2, depth, 2]. At either end, the other key of a pair is left unchanged; a key beyond
// the last position must be zero.
void pack_values(const float* v, int64_t stride, int64_t keys, int64_t depth, int64_t columns, int64_t place,
                 float* packed);
void pack_values(const Bf16* v, int64_t stride, int64_t keys, int64_t depth, int64_t columns, int64_t place,
                 Bf16* packed);

// The state of the online softmax of each row: the largest score so far, and the sum of
// 2^((score - maximum) * scale). `sums` [rows, depth] are rescaled when the maximum changes.
struct SoftmaxState {
  float *maxima, *totals, *sums;
  int64_t depth;
};

// scores [rows, columns] -> probabilities [rows, columns] = 2^((score - maximum) * scale). Columns from
// `keys` on become zero.
void softmax_block(const float* scores, float* probabilities, const SoftmaxState& state, int64_t rows,
                   int64_t keys, int64_t columns, float scale);
void softmax_block(const float* scores, Bf16* probabilities, const SoftmaxState& state, int64_t rows,
                   int64_t keys, int64_t columns, float scale);

// out[row * stride + d] = sums[row, d] / totals[row]
void normalise_block(const SoftmaxState& state, float* out, int64_t stride, int64_t rows);
void normalise_block(const SoftmaxState& state, Bf16* out, int64_t stride, int64_t rows);

}  // namespace tessera::kernels
