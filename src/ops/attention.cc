#include "ops/attention.h"

#include <ATen/Functions.h>

#include <array>
#include <cmath>

#include "core/device.h"
#include "core/error.h"
#include "kernels/attention_kernels.h"
#include "kernels/blockwise_attention.h"
#include "ops/operation.h"

namespace tessera::ops {
namespace {

// For meta tensors: whether the device that they stand for has one, so that they take the same room.
bool has_own_kernel(const at::TensorOptions& options) {
  return is_for_cpu(options.device()) &&
         kernels::attention_kernels_run(c10::typeMetaToScalarType(options.dtype()));
}
bool has_own_kernel(const at::Tensor& q) {
  return has_own_kernel(q.options());
}

// Whether the fp32 kernel computes a 16-bit dtype that this processor does not multiply.
bool is_widened(const at::Tensor& q) {
  return !has_own_kernel(q) && (q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf) &&
         has_own_kernel(q.options().dtype(at::kFloat));
}

void check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t heads) {
  TESSERA_CHECK(q.size(2) % heads == 0 && k.size(2) > 0 && q.size(2) % k.size(2) == 0 &&
                    k.size(2) % (q.size(2) / heads) == 0 && k.sizes() == v.sizes(),
                "attention: q, k, v have widths {}, {}, {} for {} heads", q.size(2), k.size(2), v.size(2),
                heads);
  TESSERA_CHECK(q.stride(2) == 1 && k.stride(2) == 1 && v.stride(2) == 1,
                "attention: rows must be contiguous");
}

// Records attention to `count` keys, whose width, like that of their values, is `key_width`. The operands
// show the heads: queries [B, heads, S, D], keys and values [2, B, their heads, count, D].
void record_attention(std::string_view name, const at::Tensor& q, int64_t heads, int64_t count,
                      int64_t key_width) {
  const int64_t batch = q.size(0), depth = q.size(2) / heads;
  const std::array<int64_t, 4> queries = {batch, heads, q.size(1), depth};
  const std::array<int64_t, 5> keys_values = {2, batch, key_width / depth, count, depth};
  record(name, "", q, 4 * q.numel() * count,
         {Operand(queries, q.scalar_type()), Operand(keys_values, q.scalar_type())});
}

// [B, S, heads * D] -> [B, heads, S, D]
at::Tensor split_heads(const at::Tensor& x, int64_t depth) {
  return x.unflatten(2, {x.size(2) / depth, depth}).transpose(1, 2);
}

// Returns [B, S, heads * D], as a view if the kernel's result is laid out token by token, as CUDA's is.
at::Tensor aten_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t heads) {
  const int64_t depth = q.size(2) / heads;
  return at::scaled_dot_product_attention(split_heads(q, depth), split_heads(k, depth), split_heads(v, depth),
                                          /*attn_mask=*/{}, /*dropout_p=*/0, /*is_causal=*/false,
                                          /*scale=*/std::nullopt, /*enable_gqa=*/k.size(2) != q.size(2))
      .transpose(1, 2)
      .flatten(2);
}

// Attention and, for each query, the logarithm of the sum of the exponentials of its scores, by kernels that
// never store all scores. q, k, v [B, heads, S or T, D] -> [B, heads, S, D], [B, heads, S] fp32.
std::tuple<at::Tensor, at::Tensor> attention_and_logarithms(const at::Tensor& q, const at::Tensor& k,
                                                            const at::Tensor& v) {
  const int64_t depth = q.size(3), queries = q.size(2);
  const double scale = 1 / std::sqrt(static_cast<double>(depth));
  if (!q.is_cuda()) {
    return at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, /*dropout_p=*/0, /*is_causal=*/false,
                                                           /*attn_mask=*/{}, scale);
  }
  constexpr int64_t kFlashDepth = 256;  // the largest depth of CUDA's flash kernels
  // CUDA's kernels need depths that are multiples of eight.
  const auto filled = [&](const at::Tensor& x) {
    return depth % 8 == 0 ? x : at::constant_pad_nd(x, {0, 8 - depth % 8});
  };
  at::Tensor out, logarithms;
  if (q.scalar_type() == at::kFloat || depth > kFlashDepth) {
    const auto all = at::_scaled_dot_product_efficient_attention(
        filled(q), filled(k), filled(v), /*attn_bias=*/{}, /*compute_log_sumexp=*/true, /*dropout_p=*/0,
        /*is_causal=*/false, scale);
    out = std::get<0>(all), logarithms = std::get<1>(all);
  } else {
    const auto all = at::_scaled_dot_product_flash_attention(filled(q), filled(k), filled(v), /*dropout_p=*/0,
                                                             /*is_causal=*/false,
                                                             /*return_debug_mask=*/false, scale);
    out = std::get<0>(all), logarithms = std::get<1>(all);
  }
  return {out.narrow(3, 0, depth), logarithms.narrow(2, 0, queries)};  // one kernel also pads the queries
}

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t heads) {
  const OperationScope scope;
  if (!q.is_cpu() && !q.is_meta()) {
    check(q, k, v, heads);
    record_attention("attention", q, heads, k.size(1), k.size(2));
    return aten_attention(q, k, v, heads);
  }
  at::Tensor out = at::empty(q.sizes(), q.options());
  attention_into(out, q, k, v, heads);
  return out;
}

void attention_into(const at::Tensor& out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    int64_t heads) {
  const OperationScope scope;
  check(q, k, v, heads);
  TESSERA_CHECK(out.sizes() == q.sizes() && out.stride(2) == 1,
                "attention: the output must have the shape of the queries");
  TESSERA_CHECK(k.size(1) > 0, "attention: there are no keys");
  record_attention("attention", q, heads, k.size(1), k.size(2));
  record_dataflow([&] { return Dataflow{"attention", "", {q, k, v}, {out}, {{"heads", heads}}}; });
  if (is_widened(q)) {
    const at::Tensor wide = at::empty(q.sizes(), q.options().dtype(at::kFloat));
    const at::Tensor queries = q.to(at::kFloat), keys = k.to(at::kFloat), values = v.to(at::kFloat);
    if (!q.is_meta()) kernels::attend(wide, queries, keys, values, heads);
    out.copy_(wide);
    return;
  }
  if (q.is_meta()) return;
  if (has_own_kernel(q)) return kernels::attend(out, q, k, v, heads);
  out.copy_(aten_attention(q, k, v, heads));
}

KvCache::KvCache(int64_t batch, int64_t tokens, int64_t heads, int64_t depth,
                 const at::TensorOptions& options)
    : tokens_(tokens), heads_(heads), depth_(depth), is_packed_(has_own_kernel(options)) {
  const OperationScope scope;
  if (!is_packed_) {
    keys_values_ = at::empty({2, batch, tokens, heads * depth}, options);
    return;
  }
  const int64_t elements =
      kernels::packed_elements(c10::typeMetaToScalarType(options.dtype()), tokens, depth);
  // Zeros, because the slot after the last of an odd number of keys is multiplied by zero and must be finite.
  keys_values_ = at::zeros({batch * heads, elements}, options);
  record_dataflow([&] { return Dataflow{"kv_cache", "", {}, {keys_values_}}; });
}

void KvCache::write(int64_t first, const at::Tensor& k, const at::Tensor& v) {
  const OperationScope scope;
  const int64_t count = k.size(1);
  TESSERA_CHECK(k.sizes() == v.sizes() && k.size(2) == heads_ * depth_ && first + count <= tokens_,
                "KV cache: {} keys of width {} do not fit at {} of {}", count, k.size(2), first, tokens_);
  record("write_kv_cache", "", k, 0, {k, v, v});
  if (!is_packed_) {
    const at::Tensor keys = keys_values_[0].narrow(1, first, count),
                     values = keys_values_[1].narrow(1, first, count);
    keys.copy_(k);
    values.copy_(v);
    record_dataflow([&] { return Dataflow{"write_kv_cache", "", {k, v}, {keys, values}}; });
    return;
  }
  record_dataflow([&] {
    return Dataflow{"write_kv_cache", "", {keys_values_, k, v}, {keys_values_}, {{"first", first}}};
  });
  if (k.is_meta()) return;
  kernels::pack_tokens({keys_values_, tokens_, heads_, depth_}, first, k, v);
}

void KvCache::attend(const at::Tensor& out, const at::Tensor& q, int64_t count) const {
  const OperationScope scope;
  TESSERA_CHECK(0 < count && count <= tokens_, "KV cache: cannot attend to {} of {} keys", count, tokens_);
  if (!is_packed_) {
    attention_into(out, q, keys_values_[0].narrow(1, 0, count), keys_values_[1].narrow(1, 0, count),
                   q.size(2) / depth_);
    return;
  }
  record_attention("attention", q, q.size(2) / depth_, count, heads_ * depth_);
  record_dataflow([&] {
    return Dataflow{
        "attention", "", {q, keys_values_}, {out}, {{"heads", q.size(2) / depth_}, {"keys", count}}};
  });
  if (q.is_meta()) return;
  TESSERA_CHECK(out.sizes() == q.sizes() && out.stride(2) == 1 && q.stride(2) == 1,
                "attention: rows must be contiguous");
  kernels::attend_packed(out, q, {keys_values_, tokens_, heads_, depth_}, count);
}

PartialAttention::PartialAttention(const at::Tensor& q, int64_t heads)
    : q_(is_widened(q) ? q.to(at::kFloat) : q), dtype_(q.scalar_type()), heads_(heads) {
  const OperationScope scope;
  const int64_t batch = q.size(0), queries = q.size(1), depth = q.size(2) / heads;
  const auto options = q.options().dtype(at::kFloat);
  sums_ = at::zeros({batch, heads, queries, depth}, options);
  maxima_ = at::full({batch, heads, queries}, -INFINITY, options);
  totals_ = at::zeros({batch, heads, queries}, options);
  record_dataflow([&] { return Dataflow{"no_attention", "", {}, {sums_, maxima_, totals_}}; });
}

void PartialAttention::add(const at::Tensor& k, const at::Tensor& v) {
  const OperationScope scope;
  check(q_, k, v, heads_);
  if (k.size(1) == 0 || q_.size(1) == 0) return;
  record_attention("attention_part", q_, heads_, k.size(1), k.size(2));
  record_dataflow([&] {
    return Dataflow{"attention_part",
                    "",
                    {q_, k, v, sums_, maxima_, totals_},
                    {sums_, maxima_, totals_},
                    {{"heads", heads_}}};
  });
  if (q_.is_meta()) return;
  if (has_own_kernel(q_)) {
    const at::Tensor keys = k.to(q_.scalar_type()), values = v.to(q_.scalar_type());
    return kernels::attend_part({sums_, maxima_, totals_}, q_, keys, values, heads_);
  }
  // out = out_1 e^(l_1 - l) + out_2 e^(l_2 - l), e^l = e^(l_1) + e^(l_2)
  const int64_t depth = q_.size(2) / heads_, sharing = q_.size(2) / k.size(2);
  const auto of_every_head = [&](const at::Tensor& x) {
    const at::Tensor heads = split_heads(x, depth);
    return sharing == 1 ? heads : heads.repeat_interleave(sharing, 1);
  };
  const auto [fresh, logarithms] =
      attention_and_logarithms(split_heads(q_, depth), of_every_head(k), of_every_head(v));
  const at::Tensor all = at::logaddexp(maxima_, logarithms);
  sums_.mul_((maxima_ - all).exp_().unsqueeze(3)).addcmul_(fresh, (logarithms - all).exp_().unsqueeze(3));
  maxima_ = all;
}

at::Tensor PartialAttention::result() const {
  const OperationScope scope;
  const at::Tensor normalised = has_own_kernel(q_) ? sums_ / totals_.unsqueeze(-1) : sums_;
  at::Tensor out = normalised.transpose(1, 2).flatten(2).to(dtype_);
  record_dataflow([&] { return Dataflow{"attention_of_parts", "", {sums_, totals_}, {out}}; });
  return out;
}

}  // namespace tessera::ops
