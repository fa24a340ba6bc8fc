// Attention by blocks with an online softmax (FlashAttention-2, arXiv:2307.08691), whose scores never leave
// the cache. It runs in the dtypes for which attention_kernels_run().
//
// Shapes: q and out [B, S, heads * D], k and v [B, T, K * D], where K divides `heads`. Heads lie side by side
// in the last dimension, which has stride 1; rows may be strided.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::kernels {

void attend(const at::Tensor& out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
            int64_t heads);

// The state of the online softmax of all heads: the sums of exp(s - max) v, the largest scores, and the sums
// of exp(s - max). fp32 [B, heads, S, D], [B, heads, S] and [B, heads, S].
struct SoftmaxProgress {
  at::Tensor sums, maxima, totals;
};
// Continues with the next part of the keys.
void attend_part(const SoftmaxProgress& progress, const at::Tensor& q, const at::Tensor& k,
                 const at::Tensor& v, int64_t heads);

// Keys and values in the layout that products read, with room for `tokens` of them in each of `heads` heads.
struct PackedTokens {
  at::Tensor elements;  // [B * heads, packed_elements()], zeros at first
  int64_t tokens, heads, depth;
};
// The number of elements of one head, in fp32 or bf16.
int64_t packed_elements(at::ScalarType dtype, int64_t tokens, int64_t depth);
// Writes k and v [B, n, heads * D] to positions [first, first + n).
void pack_tokens(const PackedTokens& packed, int64_t first, const at::Tensor& k, const at::Tensor& v);
// Attends to the keys at positions [0, count). q may have more heads.
void attend_packed(const at::Tensor& out, const at::Tensor& q, const PackedTokens& packed, int64_t count);

}  // namespace tessera::kernels
