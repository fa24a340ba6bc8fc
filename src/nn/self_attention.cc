#include "nn/self_attention.h"

#include "comm/collectives.h"
#include "core/error.h"
#include "ops/attention.h"
#include "parallel/ring.h"
#include "parallel/ulysses.h"

namespace tessera::nn {

at::Tensor SelfAttention::operator()(const at::Tensor& qkv, int64_t heads, int64_t layer, Range patches) {
  const comm::Group& ulysses = cut_.ulysses;
  std::vector<int64_t> tokens;  // of each rank of the Ulysses group
  for (int64_t rank = 0; rank < ulysses.size; ++rank) {
    tokens.push_back(cut_.token_count(patches, cut_.ring.rank * ulysses.size + rank));
  }
  const int64_t own_heads = ulysses.part(heads).length;
  const at::Tensor own = parallel::tokens_to_heads(qkv, 3, heads, tokens, ulysses);  // [B, N, 3 * h * D]
  const int64_t width = own.size(2) / 3;
  const at::Tensor q = own.narrow(2, 0, width);

  at::Tensor attended;  // [B, N, h * D]
  if (cut_.patches == 1 && cut_.ring.size > 1) {
    attended = ring_attention(own, own_heads, patches);
    if (ulysses.size > 1) attended = attended.transpose(0, 1).contiguous().transpose(0, 1);
  } else {
    const at::Tensor keys_values = own.narrow(2, width, 2 * width);
    // Where heads go back to tokens, token by token: what each rank gets then lies in one piece.
    attended = ulysses.size == 1 ? at::empty(q.sizes(), q.options())
                                 : at::empty({q.size(1), q.size(0), width}, q.options()).transpose(0, 1);
    if (cut_.patches > 1) {
      const Kept& kept = keep(keys_values, own_heads, layer, patches);
      kept.keys_values->attend(attended, q, kept.seen);
    } else {
      ops::attention_into(attended, q, keys_values.narrow(2, 0, width), keys_values.narrow(2, width, width),
                          own_heads);
    }
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
  ops::PartialAttention attention(qkv.narrow(2, 0, width), heads);
  const at::Tensor own = qkv.narrow(2, width, 2 * width).transpose(0, 1).contiguous();  // [N, B, 2 * h * D]
  parallel::ring_pass(own, lengths, cut_.ring, [&](const at::Tensor& block) {
    const at::Tensor keys_values = block.transpose(0, 1);
    attention.add(keys_values.narrow(2, 0, width), keys_values.narrow(2, width, width));
  });
  return attention.result();
}

const SelfAttention::Kept& SelfAttention::keep(const at::Tensor& keys_values, int64_t heads, int64_t layer,
                                               Range patches) {
  const size_t index = static_cast<size_t>(layer);
  if (kept_.size() <= index) kept_.resize(index + 1);
  Kept& kept = kept_[index];
  const int64_t batch = keys_values.size(0), width = keys_values.size(2) / 2;
  if (!kept.keys_values) {
    kept.keys_values.emplace(batch, cut_.rows * cut_.columns, heads, width / heads, keys_values.options());
  }
  const auto write = [&](int64_t first, const at::Tensor& both) {
    kept.keys_values->write(first, both.narrow(2, 0, width), both.narrow(2, width, width));
  };
  const int64_t ulysses_ranks = cut_.ulysses.size;
  const auto tokens_of = [&](int64_t patch, int64_t rank) {
    const Range rows = cut_.part(patch, rank);
    return Range{rows.begin * cut_.columns, rows.length * cut_.columns};
  };
  for (int64_t patch = patches.begin; patch < patches.end(); ++patch) {
    std::vector<Range> parts;  // of the ring's ranks, within the patch
    for (int64_t rank = 0; rank < cut_.ring.size; ++rank) {
      int64_t length = 0;
      for (int64_t i = 0; i < ulysses_ranks; ++i) length += tokens_of(patch, rank * ulysses_ranks + i).length;
      parts.push_back({parts.empty() ? 0 : parts.back().end(), length});
    }
    const int64_t begin = tokens_of(patch, 0).begin;
    at::Tensor whole;  // [tokens of the patch, B, 2 * h * D]
    if (cut_.ring.size > 1)
      whole = at::empty({parts.back().end(), batch, keys_values.size(2)}, keys_values.options());
    // What comes holds, for each rank of the Ulysses group, its tokens of each patch.
    int64_t of_earlier_ranks = 0;
    for (int64_t i = 0; i < ulysses_ranks; ++i) {
      const int64_t rank = cut_.ring.rank * ulysses_ranks + i;
      const int64_t from = of_earlier_ranks + cut_.token_count({patches.begin, patch - patches.begin}, rank);
      const Range tokens = tokens_of(patch, rank);
      const at::Tensor own = keys_values.narrow(1, from, tokens.length);
      if (whole.defined()) {
        whole.narrow(0, tokens.begin - begin, tokens.length).copy_(own.transpose(0, 1));
      } else {
        write(tokens.begin, own);
      }
      of_earlier_ranks += cut_.token_count(patches, rank);
    }
    if (whole.defined()) {
      comm::all_gather_into(whole, parts, cut_.ring);
      write(begin, whole.transpose(0, 1));
    }
    kept.seen = std::max(kept.seen, begin + parts.back().end());
  }
  return kept;
}

}  // namespace tessera::nn
