#include "nn/attention.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

#include <cmath>
#include <cstring>

#include "core/error.h"
#include "nn/attention_kernels.h"

namespace tessera::nn {
namespace {

// Measured on S = T = 1024, D = 72: 64 x 512 is the fastest of {32, 64, 128} x {256, 512, 1024}; a block of
// scores (128 KiB) and the packed keys and values (148 KiB) then lie in a level-2 cache of 1 MiB.
constexpr int64_t kQueryBlock = 64;
constexpr int64_t kKeyBlock = 512;

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// One head of the problem: pointers to its first element and row strides, in elements.
template <typename T>
struct Head {
  const T *q, *k, *v;
  T* out;
  int64_t q_stride, k_stride, v_stride, out_stride;
  int64_t keys, depth;
  // Where the softmax stands, when keys come in parts: [S, depth], [S], [S]. Null: all keys are here.
  float *sums, *maxima, *totals;
};

// Scratch of one thread.
template <typename T>
struct Scratch {
  T *queries, *keys, *values, *probabilities;
  float *scores, *sums;  // [kQueryBlock, kKeyBlock], [kQueryBlock, depth]
  float maxima[kQueryBlock], totals[kQueryBlock];
};

void product(int64_t m, int64_t n, int64_t k, const Bf16* a, int64_t lda, const Bf16* b, float* c, bool add) {
  at::native::cpublas::brgemm(m, n, k, lda, n, n, add, reinterpret_cast<const at::BFloat16*>(a),
                              reinterpret_cast<const at::BFloat16*>(b), c, /*is_vnni=*/true);
}
void product(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, float* c,
             bool add) {
  at::native::cpublas::brgemm(m, n, k, lda, n, n, add, a, b, c, /*is_vnni=*/false);
}

// Odd depths: bf16 products take pairs, so the queries get a column of zeros.
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

// Queries [begin, end) of one head against all its keys. `scale` includes log2(e).
template <typename T>
void attend(const Head<T>& head, int64_t begin, int64_t end, float scale, Scratch<T>& scratch) {
  constexpr int64_t kPair = sizeof(T) == 2 ? 2 : 1;
  const int64_t depth = head.depth, padded_depth = round_up(depth, kPair);
  // Keys outside, queries inside would keep a pack; queries outside keep the sums. All keys are packed first.
  const int64_t block_elements = kKeyBlock * padded_depth;
  for (int64_t key = 0, block = 0; key < head.keys; key += kKeyBlock, ++block) {
    const int64_t keys = std::min(kKeyBlock, head.keys - key), columns = round_up(keys, kPair);
    pack_keys(head.k + key * head.k_stride, head.k_stride, keys, depth, columns,
              scratch.keys + block * block_elements);
    pack_values(head.v + key * head.v_stride, head.v_stride, keys, depth,
                scratch.values + block * block_elements);
  }
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
    for (int64_t key = 0, block = 0; key < head.keys; key += kKeyBlock, ++block) {
      const int64_t keys = std::min(kKeyBlock, head.keys - key), columns = round_up(keys, kPair);
      product(rows, columns, padded_depth, queries, stride, scratch.keys + block * block_elements,
              scratch.scores, false);
      softmax_block(scratch.scores, scratch.probabilities, state, rows, keys, columns, scale);
      product(rows, depth, columns, scratch.probabilities, columns, scratch.values + block * block_elements,
              sums,
              /*add=*/goes_on || block > 0);
    }
    if (!goes_on) {
      normalise_block(state, head.out + first * head.out_stride, head.out_stride, rows);
    }
  }
}

// Where the softmax of all heads stands; see PartialAttention.
struct Progress {
  at::Tensor sums, maxima, totals;
};

// Into `out`, or into `progress` where that is given.
template <typename T>
void attend_all(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                int64_t heads, const Progress* progress = nullptr) {
  const int64_t batch = q.size(0), queries = q.size(1), keys = k.size(1), depth = q.size(2) / heads;
  const float scale = static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(depth)));
  const auto data = [](const at::Tensor& x) { return static_cast<T*>(x.data_ptr()); };
  const auto head_at = [&](int64_t b, int64_t h) {
    const auto standing = [&](const at::Tensor& x) {
      return static_cast<float*>(x.data_ptr()) + b * x.stride(0) + h * x.stride(1);
    };
    return Head<T>{.q = data(q) + b * q.stride(0) + h * depth,
                   .k = data(k) + b * k.stride(0) + h * depth,
                   .v = data(v) + b * v.stride(0) + h * depth,
                   .out = progress ? nullptr : data(out) + b * out.stride(0) + h * depth,
                   .q_stride = q.stride(1),
                   .k_stride = k.stride(1),
                   .v_stride = v.stride(1),
                   .out_stride = progress ? 0 : out.stride(1),
                   .keys = keys,
                   .depth = depth,
                   .sums = progress ? standing(progress->sums) : nullptr,
                   .maxima = progress ? standing(progress->maxima) : nullptr,
                   .totals = progress ? standing(progress->totals) : nullptr};
  };
  // Enough tasks to keep all threads busy to the end; each packs its head's keys, so not more than needed.
  const int64_t wanted = at::get_num_threads() == 1 ? 1 : 4 * at::get_num_threads();
  const int64_t query_blocks = (queries + kQueryBlock - 1) / kQueryBlock;
  const int64_t chunks = std::clamp<int64_t>(wanted / (batch * heads), 1, query_blocks);
  const int64_t chunk = (query_blocks + chunks - 1) / chunks * kQueryBlock;

  at::parallel_for(0, batch * heads * chunks, 1, [&](int64_t task_begin, int64_t task_end) {
    const int64_t padded_depth = round_up(depth, 2), padded_keys = round_up(keys, kKeyBlock);
    const std::unique_ptr<T[]> packed(
        new T[2 * padded_keys * padded_depth + kQueryBlock * (padded_depth + kKeyBlock)]);
    const std::unique_ptr<float[]> sums(new float[kQueryBlock * (kKeyBlock + depth)]);
    Scratch<T> scratch;
    scratch.keys = packed.get();
    scratch.values = scratch.keys + padded_keys * padded_depth;
    scratch.queries = scratch.values + padded_keys * padded_depth;
    scratch.probabilities = scratch.queries + kQueryBlock * padded_depth;
    scratch.scores = sums.get();
    scratch.sums = scratch.scores + kQueryBlock * kKeyBlock;
    for (int64_t task = task_begin; task < task_end; ++task) {
      const int64_t head = task / chunks, begin = task % chunks * chunk;
      attend(head_at(head / heads, head % heads), begin, std::min(queries, begin + chunk), scale, scratch);
    }
    at::native::cpublas::brgemm_release();
  });
}

bool has_own_kernel(const at::Tensor& q) {
  return q.is_cpu() && attention_kernels_run(q.scalar_type());
}

void check_shapes(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t heads) {
  TESSERA_CHECK(q.size(2) % heads == 0 && q.size(2) == k.size(2) && k.sizes() == v.sizes(),
                "widths {}, {}, {}", q.size(2), k.size(2), v.size(2));
  TESSERA_CHECK(q.stride(2) == 1 && k.stride(2) == 1 && v.stride(2) == 1, "rows must be contiguous");
}

// [B, S, heads * D] -> [B, heads, S, D]
at::Tensor split_heads(const at::Tensor& x, int64_t heads) {
  return x.unflatten(2, {heads, x.size(2) / heads}).transpose(1, 2);
}

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t heads) {
  at::Tensor out = at::empty(q.sizes(), q.options());
  attention_into(out, q, k, v, heads);
  return out;
}

void attention_into(const at::Tensor& out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    int64_t heads) {
  check_shapes(q, k, v, heads);
  TESSERA_CHECK(out.sizes() == q.sizes() && out.stride(2) == 1, "the output must be like the queries");
  TESSERA_CHECK(k.size(1) > 0, "no keys");
  if (has_own_kernel(q)) {
    q.scalar_type() == at::kBFloat16 ? attend_all<Bf16>(q, k, v, out, heads)
                                     : attend_all<float>(q, k, v, out, heads);
    return;
  }
  out.copy_(
      at::scaled_dot_product_attention(split_heads(q, heads), split_heads(k, heads), split_heads(v, heads))
          .transpose(1, 2)
          .flatten(2));
}

PartialAttention::PartialAttention(const at::Tensor& q, int64_t heads) : q_(q), heads_(heads) {
  const int64_t batch = q.size(0), queries = q.size(1), depth = q.size(2) / heads;
  const auto options = q.options().dtype(at::kFloat);
  sums_ = at::zeros({batch, heads, queries, depth}, options);
  maxima_ = at::full({batch, heads, queries}, -INFINITY, options);
  totals_ = at::zeros({batch, heads, queries}, options);
}

void PartialAttention::add(const at::Tensor& k, const at::Tensor& v) {
  check_shapes(q_, k, v, heads_);
  if (k.size(1) == 0 || q_.size(1) == 0) return;
  if (has_own_kernel(q_)) {
    const Progress progress{sums_, maxima_, totals_};
    q_.scalar_type() == at::kBFloat16 ? attend_all<Bf16>(q_, k, v, {}, heads_, &progress)
                                      : attend_all<float>(q_, k, v, {}, heads_, &progress);
    return;
  }
  // out = out_1 e^(l_1 - l) + out_2 e^(l_2 - l), e^l = e^(l_1) + e^(l_2)
  const int64_t depth = q_.size(2) / heads_;
  const at::Tensor q = split_heads(q_, heads_).to(at::kFloat) / std::sqrt(static_cast<double>(depth));
  const at::Tensor scores = at::matmul(q, split_heads(k, heads_).to(at::kFloat).transpose(2, 3));
  const at::Tensor fresh = at::logsumexp(scores, {-1});  // [B, heads, S]
  const at::Tensor all = at::logaddexp(maxima_, fresh);
  sums_ = sums_ * (maxima_ - all).exp().unsqueeze(-1) +
          at::matmul((scores - all.unsqueeze(-1)).exp(), split_heads(v, heads_).to(at::kFloat));
  maxima_ = all;
}

at::Tensor PartialAttention::result() const {
  const at::Tensor normalised = has_own_kernel(q_) ? sums_ / totals_.unsqueeze(-1) : sums_;
  return normalised.transpose(1, 2).flatten(2).to(q_.scalar_type());
}

}  // namespace tessera::nn
