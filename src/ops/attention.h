// Scaled dot-product attention: softmax(q k^T / sqrt(D)) v. It takes 4 B S T heads D FLOPs for S queries and
// T keys.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::ops {

// q [B, S, heads * D], k and v [B, T, K * D] -> [B, S, heads * D], all of the same dtype. K divides `heads`:
// each key head serves heads / K query heads (grouped queries, arXiv:2305.13245). Heads lie side by side in
// the last dimension, which must have stride 1; rows may be strided, so that parts of a fused product can be
// passed unchanged. There is no mask: every query attends to every key, so padding must be removed
// beforehand.
//
// On CPUs with AVX2 a blockwise kernel with an online softmax (FlashAttention-2, arXiv:2307.08691) is used,
// whose scores never leave the cache. It widens 16-bit dtypes to fp32 first if the processor has no products
// for them. Elsewhere ATen's kernels are used.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t heads);

// The same into `out` [B, S, heads * D], whose rows may be strided too.
void attention_into(const at::Tensor& out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    int64_t heads);

// Keys and values that persist between calls, each of which updates some of them. On CPUs with the blockwise
// kernel they are stored in the packed form that its products read, which `attention` would otherwise produce
// at every call.
class KvCache {
 public:
  // Holds `tokens` keys of `heads` heads for each of `batch` samples.
  KvCache(int64_t batch, int64_t tokens, int64_t heads, int64_t depth, const at::TensorOptions& options);

  // Writes k, v [B, n, heads * D] (as for attention()) to positions [first, first + n).
  void write(int64_t first, const at::Tensor& k, const at::Tensor& v);
  // As attention_into(), with the keys at positions [0, count), which must have been written. q may have more
  // heads.
  void attend(const at::Tensor& out, const at::Tensor& q, int64_t count) const;

 private:
  int64_t tokens_, heads_, depth_;
  bool is_packed_;
  at::Tensor keys_values_;  // packed: [B * heads, elements per head]; else [2, B, tokens, heads * D]
};

// Attention to keys that arrive in parts, each of which may be freed before the next arrives. The online
// softmax continues from part to part, so their order and sizes affect only the rounding (Ring Attention,
// arXiv:2310.01889). There must be at least one part.
class PartialAttention {
 public:
  // q [B, S, heads * D] as above; it must live until the last part has been added.
  PartialAttention(const at::Tensor& q, int64_t heads);

  // k, v [B, T, heads * D] as above; T may be 0.
  void add(const at::Tensor& k, const at::Tensor& v);
  at::Tensor result() const;  // [B, S, heads * D] in the dtype of q

 private:
  at::Tensor q_;  // in the dtype of the products
  at::ScalarType dtype_;
  int64_t heads_;
  // With the blockwise kernel, `sums_` holds the sums of exp(s - max) v and `totals_` those of exp(s - max),
  // relative to `maxima_`. Elsewhere `sums_` holds the result so far and `maxima_` the logarithms of the
  // totals.
  at::Tensor sums_;             // [B, heads, S, D] fp32
  at::Tensor maxima_, totals_;  // [B, heads, S] fp32
};

}  // namespace tessera::ops
