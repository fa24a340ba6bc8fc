#include "ops/text_attention.h"

#include <ATen/Functions.h>

#include <array>

#include "core/error.h"
#include "ops/operation.h"

namespace tessera::ops {

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t heads) {
  const OperationScope scope;
  const int64_t batch = q.size(0), tokens = q.size(1), depth = q.size(2) / heads;
  const int64_t key_heads = k.size(2) / depth;
  TESSERA_CHECK(k.sizes() == v.sizes() && k.size(1) == tokens && q.size(2) == heads * depth &&
                    k.size(2) == key_heads * depth && heads % key_heads == 0,
                "attention of a text: q, k, v have widths {}, {}, {} for {} heads", q.size(2), k.size(2),
                v.size(2), heads);
  const std::array<int64_t, 4> queries = {batch, heads, tokens, depth};
  const std::array<int64_t, 5> keys_values = {2, batch, key_heads, tokens, depth};
  record("causal_attention", "", q, 4 * q.numel() * tokens,
         {Operand(queries, q.scalar_type()), Operand(keys_values, q.scalar_type())});
  if (q.is_meta()) {
    at::Tensor out = at::empty(q.sizes(), q.options());
    record_dataflow([&] { return Dataflow{"causal_attention", "", {q, k, v}, {out}, {{"heads", heads}}}; });
    return out;
  }
  const auto by_heads = [&](const at::Tensor& x) { return x.unflatten(2, {-1, depth}).transpose(1, 2); };
  return at::scaled_dot_product_attention(by_heads(q), by_heads(k), by_heads(v), /*attn_mask=*/{},
                                          /*dropout_p=*/0, /*is_causal=*/true, /*scale=*/std::nullopt,
                                          /*enable_gqa=*/key_heads != heads)
      .transpose(1, 2)
      .flatten(2);
}

at::Tensor biased_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& bias) {
  const OperationScope scope;
  // The kernel's result is laid out token by token.
  at::Tensor out = q.is_meta()
                       ? at::empty({q.size(0), q.size(2), q.size(1), q.size(3)}, q.options()).transpose(1, 2)
                       : at::scaled_dot_product_attention(q, k, v, bias, /*dropout_p=*/0,
                                                          /*is_causal=*/false, /*scale=*/1.0);
  // Two products, and the bias.
  record("biased_attention", "", out,
         4 * q.numel() * k.size(2) + q.size(0) * q.size(1) * q.size(2) * k.size(2), {q, k, v, bias});
  record_dataflow([&] { return Dataflow{"biased_attention", "", {q, k, v, bias}, {out}}; });
  return out;
}

at::Tensor token_at(const at::Tensor& x, const at::Tensor& place) {
  const OperationScope scope;
  at::Tensor out = x.narrow(1, place.item<int64_t>(), 1).clone();
  record_dataflow([&] { return Dataflow{"token_at", "", {x, place}, {out}}; });
  return out;
}

}  // namespace tessera::ops
