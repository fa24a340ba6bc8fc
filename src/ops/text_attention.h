// Attention of text encoders, by ATen's kernels, since it takes little of a run's time.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::ops {

// Attention of q [B, L, heads * D] to k and v [B, L, K * D], in which each token attends to itself and to
// earlier ones. K divides `heads`: each key head serves heads / K query heads (grouped queries,
// arXiv:2305.13245).
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t heads);

// Attention of T5: the scores are not scaled, and `bias`, which broadcasts to [B, heads, S, S], is added to
// them. q, k, v [B, heads, S, D] -> [B, heads, S, D].
at::Tensor biased_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& bias);

// The token of x [1, L, D] at `place`, int64 [1] on the host -> [1, 1, D].
at::Tensor token_at(const at::Tensor& x, const at::Tensor& place);

}  // namespace tessera::ops
