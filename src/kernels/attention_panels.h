// The fp32 functions of attention_kernels.h for processors without AVX-512, as loops that the compiler
// vectorises. Keys and values are stored in the panels of kernels/gemm.h.
#pragma once

#include "kernels/attention_kernels.h"

namespace tessera::kernels {

// Packs k [keys, depth], whose rows are `stride` apart, into columns [place, place + keys) of the panels of
// k^T, each [depth, 16].
void pack_key_panels(const float* k, int64_t stride, int64_t keys, int64_t depth, int64_t place,
                     float* packed);

// Packs v [keys, depth] into rows [place, place + keys) of panels of `rows` rows.
void pack_value_panels(const float* v, int64_t stride, int64_t keys, int64_t depth, int64_t rows,
                       int64_t place, float* packed);

// See softmax_block() and normalise_block().
void softmax_loop(const float* scores, float* probabilities, const SoftmaxState& state, int64_t rows,
                  int64_t keys, int64_t columns, float scale);
void normalise_loop(const SoftmaxState& state, float* out, int64_t stride, int64_t rows);

}  // namespace tessera::kernels
