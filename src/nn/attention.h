// Scaled dot-product attention: softmax(q k^T / sqrt(D)) v.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::nn {

// q [B, S, heads * D], k and v [B, T, heads * D] -> [B, S, heads * D], all of one dtype. Heads lie side by
// side in the last dim, which must have stride 1; rows may be strided, so parts of one fused product can be
// passed as they are. Every query sees every key: padding is dropped before, never masked.
//
// On CPUs with AVX-512 an own kernel computes it block by block with an online softmax (FlashAttention-2,
// arXiv:2307.08691): the scores of a block never leave the cache. Elsewhere ATen's kernels do.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t heads);

// The same into `out` [B, S, heads * D], rows of which may be strided too.
void attention_into(const at::Tensor& out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    int64_t heads);

}  // namespace tessera::nn
