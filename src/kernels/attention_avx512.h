// The functions of attention_kernels.h for processors with AVX-512, and, for bf16, AVX512-BF16.
#pragma once

#include "kernels/attention_kernels.h"

namespace tessera::kernels {

// Packs k [keys, depth], whose rows are `stride` apart, into the first columns of k^T [depth, columns]; for
// bf16 [depth rounded up to pairs / 2, columns, 2], with an odd last element paired with zero.
void transpose_keys(const float* k, int64_t stride, int64_t keys, int64_t depth, int64_t columns,
                    float* packed);
void transpose_keys(const Bf16* k, int64_t stride, int64_t keys, int64_t depth, int64_t columns,
                    Bf16* packed);

// See pack_values().
void pack_value_pairs(const Bf16* v, int64_t stride, int64_t keys, int64_t depth, int64_t place,
                      Bf16* packed);

// See softmax_block() and normalise_block().
void softmax_avx512(const float* scores, float* probabilities, const SoftmaxState& state, int64_t rows,
                    int64_t keys, int64_t columns, float scale);
void softmax_avx512(const float* scores, Bf16* probabilities, const SoftmaxState& state, int64_t rows,
                    int64_t keys, int64_t columns, float scale);
void normalise_avx512(const SoftmaxState& state, float* out, int64_t stride, int64_t rows);
void normalise_avx512(const SoftmaxState& state, Bf16* out, int64_t stride, int64_t rows);

}  // namespace tessera::kernels
