#include "ops/attention.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

#include <cmath>
#include <cstring>

#include "core/device.h"
#include "core/error.h"
#include "ops/attention_kernels.h"
#include "ops/choices.h"
#include "ops/gemm.h"
#include "ops/operation.h"

namespace tessera::ops {
namespace {

// Measured on S = T = 1024, D = 72: 64 x 512 is the fastest of {32, 64, 128} x {256, 512, 1024}. A block of
// scores (128 KiB) and the packed keys and values (148 KiB) then fit a level-2 cache of 1 MiB.
constexpr int64_t kQueryBlock = 64;
constexpr int64_t kKeyBlock = 512;

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

template <typename T>
constexpr int64_t kPair = sizeof(T) == 2 ? 2 : 1;  // products of bf16 take pairs

// The multiples to which products of T pad the keys, and the depth of values: panels, pairs, or none.
template <typename T>
int64_t key_multiple() {
  return sizeof(T) == 4 && choices().panels ? kPanel : kPair<T>;
}
template <typename T>
int64_t value_multiple() {
  return sizeof(T) == 4 && choices().panels ? kPanel : 1;
}

// Keys and values of one head in the layout that products read: blocks of kKeyBlock tokens, one after
// another.
template <typename T>
struct Packed {
  T *keys, *values;
  int64_t tokens;  // capacity

  static int64_t key_elements(int64_t tokens, int64_t depth) {
    return round_up(tokens, key_multiple<T>()) * round_up(depth, kPair<T>);
  }
  static int64_t value_elements(int64_t tokens, int64_t depth) {
    return round_up(tokens, key_multiple<T>()) * round_up(depth, value_multiple<T>());
  }

  T* key_block(int64_t token, int64_t depth) const { return keys + token * round_up(depth, kPair<T>); }
  T* value_block(int64_t token, int64_t depth) const {
    return values + token * round_up(depth, value_multiple<T>());
  }
  // The columns of the block that begins with this token.
  int64_t columns(int64_t token) const {
    return std::min(kKeyBlock, round_up(tokens - token, key_multiple<T>()));
  }
};

// One head of the problem: pointers to its first element, and row strides in elements.
template <typename T>
struct Head {
  const T* q;
  T* out;
  int64_t q_stride, out_stride;
  Packed<T> packed;
  int64_t keys, depth;  // only the first `keys` packed keys are used
  // The state of the softmax if keys come in parts: [S, depth], [S], [S]. Null if all keys are given at once.
  float *sums, *maxima, *totals;
};

// Buffers of one thread.
template <typename T>
struct Scratch {
  T *queries, *probabilities;
  float *scores, *sums;  // [kQueryBlock, kKeyBlock], [kQueryBlock, depth]
  float maxima[kQueryBlock], totals[kQueryBlock];
};

void product(int64_t m, int64_t n, int64_t k, const Bf16* a, int64_t lda, const Bf16* b, int64_t ldb,
             float* c, bool add) {
  at::native::cpublas::brgemm(m, n, k, lda, ldb, n, add, reinterpret_cast<const at::BFloat16*>(a),
                              reinterpret_cast<const at::BFloat16*>(b), c, /*is_vnni=*/true);
}
void product(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb,
             float* c, bool add) {
  at::native::cpublas::brgemm(m, n, k, lda, ldb, n, add, a, b, c, /*is_vnni=*/false);
}

// scores [rows, columns] against a block of keys that has room for `room` columns.
template <typename T>
void multiply_keys(int64_t rows, int64_t columns, int64_t depth, const T* queries, int64_t stride,
                   const T* keys, int64_t room, float* scores) {
  if constexpr (sizeof(T) == 4) {
    if (choices().panels)
      return gemm(rows, columns, depth, queries, stride, keys, depth * kPanel, scores, columns, false);
  }
  product(rows, columns, depth, queries, stride, keys, room, scores, /*add=*/false);
}

// sums [rows, depth] = probabilities [rows, columns] times the values of a block that has room for `room`, or
// += that if `add`.
template <typename T>
void multiply_values(int64_t rows, int64_t depth, int64_t keys, int64_t columns, const T* probabilities,
                     const T* values, int64_t room, float* sums, bool add) {
  if constexpr (sizeof(T) == 4) {
    if (choices().panels)
      return gemm(rows, depth, keys, probabilities, columns, values, room * kPanel, sums, depth, add);
  }
  product(rows, depth, columns, probabilities, columns, values, depth, sums, add);
}

// Packs rows [0, count) of k and v into positions [first, first + count) of one head.
template <typename T>
void pack(const Packed<T>& packed, int64_t first, int64_t count, const T* k, int64_t k_stride, const T* v,
          int64_t v_stride, int64_t depth) {
  for (int64_t token = first; token < first + count;) {
    const int64_t block = token / kKeyBlock * kKeyBlock, place = token - block;
    const int64_t here = std::min(first + count, block + kKeyBlock) - token;
    pack_keys(k + (token - first) * k_stride, k_stride, here, depth, packed.columns(block), place,
              packed.key_block(block, depth));
    pack_values(v + (token - first) * v_stride, v_stride, here, depth, packed.columns(block), place,
                packed.value_block(block, depth));
    token += here;
  }
}

// bf16 products take pairs, so queries of odd depth get a column of zeros.
template <typename T>
const T* padded_queries(const Head<T>& head, int64_t first, int64_t rows, int64_t padded_depth, T* scratch,
                        int64_t& stride) {
  const T* queries = head.q + first * head.q_stride;
  stride = head.q_stride;
  if (padded_depth == head.depth) return queries;
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(scratch + row * padded_depth, queries + row * stride, head.depth * sizeof(T));
    scratch[row * padded_depth + head.depth] = 0;
  }
  stride = padded_depth;
  return scratch;
}

// Attention of queries [begin, end) of one head to all its keys. `scale` includes log2(e).
template <typename T>
void attend(const Head<T>& head, int64_t begin, int64_t end, float scale, Scratch<T>& scratch) {
  const int64_t depth = head.depth, padded_depth = round_up(depth, kPair<T>);
  for (int64_t first = begin; first < end; first += kQueryBlock) {
    const int64_t rows = std::min(kQueryBlock, end - first);
    int64_t stride = 0;
    const T* queries = padded_queries(head, first, rows, padded_depth, scratch.queries, stride);
    const bool goes_on = head.sums != nullptr;
    float* sums = goes_on ? head.sums + first * depth : scratch.sums;
    float* maxima = goes_on ? head.maxima + first : scratch.maxima;
    float* totals = goes_on ? head.totals + first : scratch.totals;
    const SoftmaxState state{maxima, totals, sums, depth};
    if (!goes_on) {
      std::fill_n(maxima, rows, -INFINITY);
      std::fill_n(totals, rows, 0.0F);
    }
    for (int64_t key = 0; key < head.keys; key += kKeyBlock) {
      const int64_t keys = std::min(kKeyBlock, head.keys - key), columns = round_up(keys, key_multiple<T>());
      multiply_keys(rows, columns, padded_depth, queries, stride, head.packed.key_block(key, depth),
                    head.packed.columns(key), scratch.scores);
      softmax_block(scratch.scores, scratch.probabilities, state, rows, keys, columns, scale);
      multiply_values(rows, depth, keys, columns, scratch.probabilities, head.packed.value_block(key, depth),
                      head.packed.columns(key), sums, /*add=*/goes_on || key > 0);
    }
    if (!goes_on) {
      normalise_block(state, head.out + first * head.out_stride, head.out_stride, rows);
    }
  }
}

// The state of the softmax of all heads; see PartialAttention.
struct Progress {
  at::Tensor sums, maxima, totals;
};

template <typename T>
T* data(const at::Tensor& x) {
  return static_cast<T*>(x.data_ptr());
}

// One head in a tensor of all heads of all samples, each with room for `tokens`.
template <typename T>
Packed<T> packed_head(T* all, int64_t head, int64_t tokens, int64_t depth) {
  const int64_t keys = Packed<T>::key_elements(tokens, depth);
  T* const own = all + head * (keys + Packed<T>::value_elements(tokens, depth));
  return {own, own + keys, tokens};
}

// Attention of q to the first `keys` keys of packed_of(sample, head, scratch), for which the scratch has room
// for `packed_elements`. Writes to `out`, or to `progress` if that is given.
template <typename T, typename PackedOf>
void attend_all(const at::Tensor& q, int64_t keys, const at::Tensor& out, int64_t heads,
                int64_t packed_elements, const PackedOf& packed_of, const Progress* progress = nullptr) {
  if (q.numel() == 0) return;  // a rank without rows
  const int64_t batch = q.size(0), queries = q.size(1), depth = q.size(2) / heads;
  const float scale = static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(depth)));
  const auto head_at = [&](int64_t b, int64_t h, T* scratch) {
    const auto standing = [&](const at::Tensor& x) {
      return static_cast<float*>(x.data_ptr()) + b * x.stride(0) + h * x.stride(1);
    };
    return Head<T>{.q = data<T>(q) + b * q.stride(0) + h * depth,
                   .out = progress ? nullptr : data<T>(out) + b * out.stride(0) + h * depth,
                   .q_stride = q.stride(1),
                   .out_stride = progress ? 0 : out.stride(1),
                   .packed = packed_of(b, h, scratch),
                   .keys = keys,
                   .depth = depth,
                   .sums = progress ? standing(progress->sums) : nullptr,
                   .maxima = progress ? standing(progress->maxima) : nullptr,
                   .totals = progress ? standing(progress->totals) : nullptr};
  };
  // Enough tasks keep all threads busy to the end, but no more, as each may have to pack its head's keys.
  const int64_t wanted = at::get_num_threads() == 1 ? 1 : 4 * at::get_num_threads();
  const int64_t query_blocks = (queries + kQueryBlock - 1) / kQueryBlock;
  const int64_t chunks = std::clamp<int64_t>(wanted / (batch * heads), 1, query_blocks);
  const int64_t chunk = (query_blocks + chunks - 1) / chunks * kQueryBlock;

  at::parallel_for(0, batch * heads * chunks, 1, [&](int64_t task_begin, int64_t task_end) {
    const int64_t padded_depth = round_up(depth, kPair<T>);
    const std::unique_ptr<T[]> elements(new T[packed_elements + kQueryBlock * (padded_depth + kKeyBlock)]);
    const std::unique_ptr<float[]> sums(new float[kQueryBlock * (kKeyBlock + depth)]);
    Scratch<T> scratch;
    scratch.queries = elements.get() + packed_elements;
    scratch.probabilities = scratch.queries + kQueryBlock * padded_depth;
    scratch.scores = sums.get();
    scratch.sums = scratch.scores + kQueryBlock * kKeyBlock;
    for (int64_t task = task_begin; task < task_end; ++task) {
      const int64_t head = task / chunks, begin = task % chunks * chunk;
      attend(head_at(head / heads, head % heads, elements.get()), begin, std::min(queries, begin + chunk),
             scale, scratch);
    }
    at::native::cpublas::brgemm_release();
  });
}

// Packs k and v in each task. All keys come first, as queries in the outer and keys in the inner loop keep
// the sums in place.
template <typename T>
void attend_all(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                int64_t heads, const Progress* progress = nullptr) {
  const int64_t keys = k.size(1), depth = q.size(2) / heads, sharing = heads / (k.size(2) / depth);
  const auto packed_of = [&](int64_t b, int64_t head, T* scratch) {
    const int64_t h = head / sharing;
    const Packed<T> packed = packed_head(scratch, 0, keys, depth);
    if (keys % kPair<T> != 0) std::fill_n(packed.value_block(keys - 1, depth), kPair<T> * depth, T{0});
    pack(packed, 0, keys, data<T>(k) + b * k.stride(0) + h * depth, k.stride(1),
         data<T>(v) + b * v.stride(0) + h * depth, v.stride(1), depth);
    return packed;
  };
  const int64_t room = Packed<T>::key_elements(keys, depth) + Packed<T>::value_elements(keys, depth);
  attend_all<T>(q, keys, out, heads, room, packed_of, progress);
}

// Of meta tensors, whether what they stand for has one, so that they take the same room.
bool has_own_kernel(const at::TensorOptions& options) {
  return is_for_cpu(options.device()) && attention_kernels_run(c10::typeMetaToScalarType(options.dtype()));
}
bool has_own_kernel(const at::Tensor& q) {
  return has_own_kernel(q.options());
}

// Whether a 16-bit dtype that this processor does not multiply is computed by the fp32 kernel.
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
// never hold all scores. q, k, v [B, heads, S or T, D] -> [B, heads, S, D], [B, heads, S] fp32.
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
  return {out.narrow(3, 0, depth), logarithms.narrow(2, 0, queries)};  // one kernel pads the queries too
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
  if (is_widened(q)) {
    const at::Tensor wide = at::empty(q.sizes(), q.options().dtype(at::kFloat));
    const at::Tensor queries = q.to(at::kFloat), keys = k.to(at::kFloat), values = v.to(at::kFloat);
    if (!q.is_meta()) attend_all<float>(queries, keys, values, wide, heads);
    out.copy_(wide);
    return;
  }
  if (q.is_meta()) return;
  if (has_own_kernel(q)) {
    q.scalar_type() == at::kBFloat16 ? attend_all<Bf16>(q, k, v, out, heads)
                                     : attend_all<float>(q, k, v, out, heads);
    return;
  }
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
      options.dtype() == at::kFloat
          ? Packed<float>::key_elements(tokens, depth) + Packed<float>::value_elements(tokens, depth)
          : Packed<Bf16>::key_elements(tokens, depth) + Packed<Bf16>::value_elements(tokens, depth);
  // Zeros, because the slot beside the last of an odd number of keys is multiplied by zero and must be
  // finite.
  keys_values_ = at::zeros({batch * heads, elements}, options);
}

void KvCache::write(int64_t first, const at::Tensor& k, const at::Tensor& v) {
  const OperationScope scope;
  const int64_t count = k.size(1);
  TESSERA_CHECK(k.sizes() == v.sizes() && k.size(2) == heads_ * depth_ && first + count <= tokens_,
                "KV cache: {} keys of width {} do not fit at {} of {}", count, k.size(2), first, tokens_);
  record("write_kv_cache", "", k, 0, {k, v, v});
  if (!is_packed_) {
    keys_values_[0].narrow(1, first, count).copy_(k);
    keys_values_[1].narrow(1, first, count).copy_(v);
    return;
  }
  if (k.is_meta()) return;
  const auto write_all = [&](auto* packed) {
    using T = std::remove_pointer_t<decltype(packed)>;
    at::parallel_for(0, k.size(0) * heads_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t head = begin; head < end; ++head) {
        const int64_t b = head / heads_, from = head % heads_ * depth_;
        pack(packed_head(packed, head, tokens_, depth_), first, count, data<T>(k) + b * k.stride(0) + from,
             k.stride(1), data<T>(v) + b * v.stride(0) + from, v.stride(1), depth_);
      }
    });
  };
  if (k.scalar_type() == at::kBFloat16) {
    write_all(data<Bf16>(keys_values_));
  } else {
    write_all(data<float>(keys_values_));
  }
}

void KvCache::attend(const at::Tensor& out, const at::Tensor& q, int64_t count) const {
  const OperationScope scope;
  TESSERA_CHECK(0 < count && count <= tokens_, "KV cache: cannot attend to {} of {} keys", count, tokens_);
  if (!is_packed_) {
    attention_into(out, q, keys_values_[0].narrow(1, 0, count), keys_values_[1].narrow(1, 0, count),
                   q.size(2) / depth_);
    return;
  }
  const int64_t heads = q.size(2) / depth_, sharing = heads / heads_;
  record_attention("attention", q, heads, count, heads_ * depth_);
  if (q.is_meta()) return;
  TESSERA_CHECK(out.sizes() == q.sizes() && out.stride(2) == 1 && q.stride(2) == 1,
                "attention: rows must be contiguous");
  const auto attend_packed = [&](auto* packed) {
    using T = std::remove_pointer_t<decltype(packed)>;
    attend_all<T>(q, count, out, heads, /*packed_elements=*/0, [&](int64_t b, int64_t h, T* /*scratch*/) {
      return packed_head(packed, b * heads_ + h / sharing, tokens_, depth_);
    });
  };
  if (q.scalar_type() == at::kBFloat16) {
    attend_packed(data<Bf16>(keys_values_));
  } else {
    attend_packed(data<float>(keys_values_));
  }
}

PartialAttention::PartialAttention(const at::Tensor& q, int64_t heads)
    : q_(is_widened(q) ? q.to(at::kFloat) : q), dtype_(q.scalar_type()), heads_(heads) {
  const OperationScope scope;
  const int64_t batch = q.size(0), queries = q.size(1), depth = q.size(2) / heads;
  const auto options = q.options().dtype(at::kFloat);
  sums_ = at::zeros({batch, heads, queries, depth}, options);
  maxima_ = at::full({batch, heads, queries}, -INFINITY, options);
  totals_ = at::zeros({batch, heads, queries}, options);
}

void PartialAttention::add(const at::Tensor& k, const at::Tensor& v) {
  const OperationScope scope;
  check(q_, k, v, heads_);
  if (k.size(1) == 0 || q_.size(1) == 0) return;
  record_attention("attention_part", q_, heads_, k.size(1), k.size(2));
  if (q_.is_meta()) return;
  if (has_own_kernel(q_)) {
    const Progress progress{sums_, maxima_, totals_};
    const at::Tensor keys = k.to(q_.scalar_type()), values = v.to(q_.scalar_type());
    q_.scalar_type() == at::kBFloat16 ? attend_all<Bf16>(q_, keys, values, {}, heads_, &progress)
                                      : attend_all<float>(q_, keys, values, {}, heads_, &progress);
    return;
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
  return normalised.transpose(1, 2).flatten(2).to(dtype_);
}

}  // namespace tessera::ops
