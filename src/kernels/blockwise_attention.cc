#include "kernels/blockwise_attention.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "kernels/attention_kernels.h"
#include "kernels/choices.h"
#include "kernels/gemm.h"

namespace tessera::kernels {
namespace {

// Measured on S = T = 1024, D = 72: 64 x 512 is the fastest of {32, 64, 128} x {256, 512, 1024}. A block of
// scores (128 KiB) and the packed keys and values (148 KiB) then fit a level-2 cache of 1 MiB.
constexpr int64_t kQueryBlock = 64;
constexpr int64_t kKeyBlock = 512;

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

template <typename T>
constexpr int64_t kPair = sizeof(T) == 2 ? 2 : 1;  // bf16 products read pairs

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

// Computes scores [rows, columns] for a block of keys that has room for `room` columns.
template <typename T>
void multiply_keys(int64_t rows, int64_t columns, int64_t depth, const T* queries, int64_t stride,
                   const T* keys, int64_t room, float* scores) {
  if constexpr (sizeof(T) == 4) {
    if (choices().panels)
      return gemm(rows, columns, depth, queries, stride, keys, depth * kPanel, scores, columns, false);
  }
  product(rows, columns, depth, queries, stride, keys, room, scores, /*add=*/false);
}

// Computes sums [rows, depth] = probabilities [rows, columns] times the values of a block with room for
// `room`, or adds to them if `add`.
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

// bf16 products read pairs, so queries of odd depth get a column of zeros.
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

// Attention of q to the first `keys` keys of packed_of(sample, head, scratch), where the scratch has room for
// `packed_elements`. Writes to `out`, or to `progress` if that is given.
template <typename T, typename PackedOf>
void attend_all(const at::Tensor& q, int64_t keys, const at::Tensor& out, int64_t heads,
                int64_t packed_elements, const PackedOf& packed_of,
                const SoftmaxProgress* progress = nullptr) {
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
  // Enough tasks to keep all threads busy to the end, but no more, because each may have to pack its head's
  // keys.
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

// Packs k and v in each task. All keys are packed first, because queries in the outer and keys in the inner
// loop keep the sums in place.
template <typename T>
void attend_all(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                int64_t heads, const SoftmaxProgress* progress = nullptr) {
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

// Calls `work` with a null pointer to the element type.
template <typename Work>
void with_elements(at::ScalarType dtype, const Work& work) {
  if (dtype == at::kBFloat16) return work(static_cast<Bf16*>(nullptr));
  work(static_cast<float*>(nullptr));
}

}  // namespace

void attend(const at::Tensor& out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
            int64_t heads) {
  with_elements(q.scalar_type(), [&]<typename T>(T* /*type*/) { attend_all<T>(q, k, v, out, heads); });
}

void attend_part(const SoftmaxProgress& progress, const at::Tensor& q, const at::Tensor& k,
                 const at::Tensor& v, int64_t heads) {
  with_elements(q.scalar_type(),
                [&]<typename T>(T* /*type*/) { attend_all<T>(q, k, v, {}, heads, &progress); });
}

int64_t packed_elements(at::ScalarType dtype, int64_t tokens, int64_t depth) {
  int64_t elements = 0;
  with_elements(dtype, [&]<typename T>(T* /*type*/) {
    elements = Packed<T>::key_elements(tokens, depth) + Packed<T>::value_elements(tokens, depth);
  });
  return elements;
}

void pack_tokens(const PackedTokens& packed, int64_t first, const at::Tensor& k, const at::Tensor& v) {
  const int64_t heads = packed.heads, depth = packed.depth;
  with_elements(k.scalar_type(), [&]<typename T>(T* /*type*/) {
    at::parallel_for(0, k.size(0) * heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t head = begin; head < end; ++head) {
        const int64_t b = head / heads, from = head % heads * depth;
        pack(packed_head(data<T>(packed.elements), head, packed.tokens, depth), first, k.size(1),
             data<T>(k) + b * k.stride(0) + from, k.stride(1), data<T>(v) + b * v.stride(0) + from,
             v.stride(1), depth);
      }
    });
  });
}

void attend_packed(const at::Tensor& out, const at::Tensor& q, const PackedTokens& packed, int64_t count) {
  const int64_t heads = q.size(2) / packed.depth, sharing = heads / packed.heads;
  with_elements(q.scalar_type(), [&]<typename T>(T* /*type*/) {
    attend_all<T>(q, count, out, heads, /*packed_elements=*/0, [&](int64_t b, int64_t h, T* /*scratch*/) {
      return packed_head(data<T>(packed.elements), b * packed.heads + h / sharing, packed.tokens,
                         packed.depth);
    });
  });
}

}  // namespace tessera::kernels
