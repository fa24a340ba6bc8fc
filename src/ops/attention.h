// Scaled dot-product attention: softmax(q k^T / sqrt(D)) v. 4 B S T heads D FLOPs of S queries and T keys.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::ops {

// q [B, S, heads * D], k and v [B, T, K * D] -> [B, S, heads * D], all of one dtype. K divides `heads`: so
// many queries share a head of keys (grouped queries, arXiv:2305.13245). Heads lie side by side in the last
// dim, which must have stride 1; rows may be strided, so parts of one fused product can be passed as they
// are. Every query sees every key: padding is dropped before, never masked.
//
// On CPUs with AVX2 an own kernel computes it block by block with an online softmax (FlashAttention-2,
// arXiv:2307.08691): the scores of a block never leave the cache. 16-bit numbers that
// the processor does not multiply are widened to fp32 first. Elsewhere ATen's kernels do.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t heads);

// The same into `out` [B, S, heads * D], rows of which may be strided too.
void attention_into(const at::Tensor& out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    int64_t heads);

// The same among the tokens of a text, q, k and v [B, L, heads * D], of which each sees those up to itself.
// Through ATen: for text encoders.
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t heads);

// Keys and values that stay from call to call, of which a call changes a part. On CPUs with the own kernel
// they are kept in the form in which its products read them, into which `attention` would bring all of them
// at every call.
class KvCache {
 public:
  // For keys of B = `batch` samples at `tokens` places, of `heads` heads.
  KvCache(int64_t batch, int64_t tokens, int64_t heads, int64_t depth, const at::TensorOptions& options);

  // k, v [B, n, heads * D], as above, into places [first, first + n).
  void write(int64_t first, const at::Tensor& k, const at::Tensor& v);
  // As attention_into(), with the keys of places [0, count), which have been written; q may have more heads.
  void attend(const at::Tensor& out, const at::Tensor& q, int64_t count) const;

 private:
  int64_t tokens_, heads_, depth_;
  bool is_packed_;
  at::Tensor keys_values_;  // own kernel: [B * heads, elements of a head]; else [2, B, tokens, heads * D]
};

// Attention to keys that come in parts, each of which may be gone when the next comes: the online softmax
// goes on where the last part left it, so the parts' order and sizes change nothing but the rounding (Ring
// Attention, arXiv:2310.01889). At least one part must come.
class PartialAttention {
 public:
  // q [B, S, heads * D] as above; it must live until the last part has been added.
  PartialAttention(const at::Tensor& q, int64_t heads);

  // k, v [B, T, heads * D] as above; T may be 0.
  void add(const at::Tensor& k, const at::Tensor& v);
  at::Tensor result() const;  // [B, S, heads * D] in the dtype of q

 private:
  at::Tensor q_;  // in the dtype in which products are taken
  at::ScalarType dtype_;
  int64_t heads_;
  // Own kernel: sums of exp(s - max) v, relative to `maxima_`, and of exp(s - max) in `totals_`. Elsewhere
  // the result so far, and the logarithms of the totals in `maxima_`.
  at::Tensor sums_;             // [B, heads, S, D] fp32
  at::Tensor maxima_, totals_;  // [B, heads, S] fp32
};

}  // namespace tessera::ops
