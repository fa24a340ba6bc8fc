#include "kernels/attention_kernels.h"

#include <algorithm>

#include "kernels/attention_avx512.h"
#include "kernels/attention_panels.h"
#include "kernels/choices.h"

#if defined(__x86_64__)

namespace tessera::kernels {

bool attention_kernels_run(at::ScalarType dtype) {
  return choices().own_attention && is_multiplied(dtype);
}

void pack_keys(const float* k, int64_t stride, int64_t keys, int64_t depth, int64_t columns, int64_t place,
               float* packed) {
  if (choices().panels) return pack_key_panels(k, stride, keys, depth, place, packed);
  transpose_keys(k, stride, keys, depth, columns, packed + place);
}
void pack_keys(const Bf16* k, int64_t stride, int64_t keys, int64_t depth, int64_t columns, int64_t place,
               Bf16* packed) {
  transpose_keys(k, stride, keys, depth, columns, packed + 2 * place);
}

void pack_values(const float* v, int64_t stride, int64_t keys, int64_t depth, int64_t columns, int64_t place,
                 float* packed) {
  if (choices().panels) return pack_value_panels(v, stride, keys, depth, columns, place, packed);
  for (int64_t key = 0; key < keys; ++key)
    std::copy_n(v + key * stride, depth, packed + (place + key) * depth);
}
void pack_values(const Bf16* v, int64_t stride, int64_t keys, int64_t depth, int64_t /*columns*/,
                 int64_t place, Bf16* packed) {
  pack_value_pairs(v, stride, keys, depth, place, packed);
}

void softmax_block(const float* scores, float* probabilities, const SoftmaxState& state, int64_t rows,
                   int64_t keys, int64_t columns, float scale) {
  if (cpu_isa() < Isa::kAvx512) return softmax_loop(scores, probabilities, state, rows, keys, columns, scale);
  softmax_avx512(scores, probabilities, state, rows, keys, columns, scale);
}
void softmax_block(const float* scores, Bf16* probabilities, const SoftmaxState& state, int64_t rows,
                   int64_t keys, int64_t columns, float scale) {
  softmax_avx512(scores, probabilities, state, rows, keys, columns, scale);
}

void normalise_block(const SoftmaxState& state, float* out, int64_t stride, int64_t rows) {
  if (cpu_isa() < Isa::kAvx512) return normalise_loop(state, out, stride, rows);
  normalise_avx512(state, out, stride, rows);
}
void normalise_block(const SoftmaxState& state, Bf16* out, int64_t stride, int64_t rows) {
  normalise_avx512(state, out, stride, rows);
}

}  // namespace tessera::kernels

#else

namespace tessera::kernels {

bool attention_kernels_run(at::ScalarType /*dtype*/) {
  return false;
}

}  // namespace tessera::kernels

#endif
