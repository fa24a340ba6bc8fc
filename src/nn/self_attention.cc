#include "nn/self_attention.h"

#include "core/error.h"
#include "nn/attention.h"
#include "parallel/collectives.h"
#include "parallel/ring.h"
#include "parallel/ulysses.h"

namespace tessera::nn {

using parallel::Range;

at::Tensor SelfAttention::operator()(const at::Tensor& qkv, int64_t heads, int64_t layer, Range patches) {
  const parallel::Group& ulysses = cut_.ulysses;
  std::vector<int64_t> tokens;  // of each rank of the Ulysses group
  for (int64_t rank = 0; rank < ulysses.size; ++rank) {
    tokens.push_back(cut_.token_count(patches, cut_.ring.rank * ulysses.size + rank));
  }
  const int64_t own_heads = parallel::split_evenly(heads, ulysses).length;
  const at::Tensor own = parallel::tokens_to_heads(qkv, 3, heads, tokens, ulysses);  // [B, N, 3 * h * D]
  const int64_t width = own.size(2) / 3;
  const at::Tensor q = own.narrow(2, 0, width);

  at::Tensor attended;  // [B, N, h * D]
  if (cut_.patches == 1 && cut_.ring.size > 1) {
    attended = ring_attention(own, own_heads, patches);
    if (ulysses.size > 1) attended = attended.transpose(0, 1).contiguous().transpose(0, 1);
  } else {
    at::Tensor keys_values = own.narrow(2, width, 2 * width);
    if (cut_.patches > 1) keys_values = keep(keys_values, layer, patches);
    // Where heads go back to tokens, token by token: what each rank gets then lies in one piece.
    attended = ulysses.size == 1 ? at::empty(q.sizes(), q.options())
                                 : at::empty({q.size(1), q.size(0), width}, q.options()).transpose(0, 1);
    attention_into(attended, q, keys_values.narrow(2, 0, width), keys_values.narrow(2, width, width),
                   own_heads);
  }
  if (ulysses.size == 1) return attended;
  return parallel::heads_to_tokens(attended.transpose(0, 1), heads, tokens, ulysses);
}

at::Tensor SelfAttention::ring_attention(const at::Tensor& qkv, int64_t heads, Range patches) const {
  const int64_t width = qkv.size(2) / 3;
  std::vector<int64_t> lengths;  // of each rank of the ring: all tokens of its Ulysses group
  for (int64_t rank = 0; rank < cut_.ring.size; ++rank) {
    int64_t length = 0;
    for (int64_t i = 0; i < cut_.ulysses.size; ++i)
      length += cut_.token_count(patches, rank * cut_.ulysses.size + i);
    lengths.push_back(length);
  }
  PartialAttention attention(qkv.narrow(2, 0, width), heads);
  const at::Tensor own = qkv.narrow(2, width, 2 * width).transpose(0, 1).contiguous();  // [N, B, 2 * h * D]
  parallel::ring_pass(own, lengths, cut_.ring, [&](const at::Tensor& block) {
    const at::Tensor keys_values = block.transpose(0, 1);
    attention.add(keys_values.narrow(2, 0, width), keys_values.narrow(2, width, width));
  });
  return attention.result();
}

// Keys and values [B, N, 2 * h * D] of this rank's Ulysses group into their places, here and on the whole
// ring.
at::Tensor SelfAttention::keep(const at::Tensor& keys_values, int64_t layer, Range patches) {
  const size_t index = static_cast<size_t>(layer);
  if (kept_.size() <= index) kept_.resize(index + 1);
  at::Tensor& kept = kept_[index].keys_values;
  if (!kept.defined()) {
    kept = at::empty({cut_.rows * cut_.columns, keys_values.size(0), keys_values.size(2)},
                     keys_values.options());
  }
  const int64_t ulysses_ranks = cut_.ulysses.size;
  // What comes holds, for each rank of the Ulysses group, its tokens of each patch.
  int64_t from = 0;
  for (int64_t i = 0; i < ulysses_ranks; ++i) {
    for (int64_t patch = patches.begin; patch < patches.end(); ++patch) {
      const Range rows = cut_.part(patch, cut_.ring.rank * ulysses_ranks + i);
      const int64_t count = rows.length * cut_.columns;
      kept.narrow(0, rows.begin * cut_.columns, count)
          .copy_(keys_values.narrow(1, from, count).transpose(0, 1));
      from += count;
    }
  }
  for (int64_t patch = patches.begin; patch < patches.end(); ++patch) {
    std::vector<Range> parts;  // of the ring's ranks, within the patch
    for (int64_t rank = 0; rank < cut_.ring.size; ++rank) {
      int64_t length = 0;
      for (int64_t i = 0; i < ulysses_ranks; ++i)
        length += cut_.part(patch, rank * ulysses_ranks + i).length * cut_.columns;
      parts.push_back({parts.empty() ? 0 : parts.back().end(), length});
    }
    at::Tensor place = kept.narrow(0, cut_.part(patch, 0).begin * cut_.columns, parts.back().end());
    parallel::all_gather_into(place, parts, cut_.ring);
    kept_[index].seen =
        std::max(kept_[index].seen, cut_.part(patch, 0).begin * cut_.columns + parts.back().end());
  }
  return kept.narrow(0, 0, kept_[index].seen).transpose(0, 1);
}

}  // namespace tessera::nn
