#include "nn/tokens.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "comm/collectives.h"
#include "core/error.h"
#include "parallel/dsp.h"
#include "parallel/ring.h"
#include "parallel/ulysses.h"

namespace tessera::nn {
namespace {

// Views [B, T * S, C] as B * T (or B * S) samples, so that attention stays within a frame (or a position).
at::Tensor fold(const at::Tensor& x, Over over, int64_t frames) {
  if (over == Over::kAll) return x;
  const at::Tensor by_frame = x.unflatten(1, {frames, x.size(1) / frames});
  return (over == Over::kSpatial ? by_frame : by_frame.transpose(1, 2)).flatten(0, 1);
}

at::Tensor unfold(const at::Tensor& x, Over over, int64_t batch) {
  if (over == Over::kAll) return x;
  const at::Tensor by_sample = x.unflatten(0, {batch, x.size(0) / batch});
  return (over == Over::kSpatial ? by_sample : by_sample.transpose(1, 2)).flatten(1, 2);
}

// Copies k, v [B, N, C] side by side into `to` [N, B, 2 * C], which is one contiguous message.
void fill_side_by_side(const at::Tensor& to, const at::Tensor& k, const at::Tensor& v) {
  to.narrow(2, 0, k.size(2)).copy_(k.transpose(0, 1));
  to.narrow(2, k.size(2), k.size(2)).copy_(v.transpose(0, 1));
}

}  // namespace

// The cut of the sequence that attention runs over: the grid, one of its frames, one position across its
// frames, or the grid followed by this rank's part of another sequence.
class Tokens::Sequence {
 public:
  Sequence(const parallel::Cut& cut, Range run, Over over, int64_t other = 0)
      : cut_(cut), run_(run), over_(over), other_(other) {
    if (over == Over::kSpatial) samples_ = cut_.grid.frames;
    if (over == Over::kTemporal) samples_ = cut_.grid.rows * cut_.grid.columns;
  }

  // The number of local tokens of part `rank`, in total and in some patches.
  int64_t length(int64_t rank) const {
    return length(run_, rank) + split_evenly(other_, rank, cut_.ranks).length;
  }
  int64_t length(Range patches, int64_t rank) const { return cut_.held(patches, rank).tokens() / samples_; }
  // The number of tokens before part `rank` of `patch` if tokens are ordered by patch, then by rank.
  int64_t begin_of_patch(int64_t patch, int64_t rank = 0) const {
    int64_t before = 0;
    for (int64_t i = 0; i < cut_.ranks; ++i) before += length({0, patch}, i);
    for (int64_t i = 0; i < rank; ++i) before += length({patch, 1}, i);
    return before;
  }
  // The ranges of `patch` among the local tokens of part `rank`.
  std::vector<Range> within(int64_t patch, int64_t rank) const {
    if (over_ == Over::kAll) return cut_.tokens_within(run_, patch, rank);
    return {{length({run_.begin, patch - run_.begin}, rank), length({patch, 1}, rank)}};
  }

 private:
  const parallel::Cut& cut_;
  Range run_;
  Over over_;
  int64_t other_, samples_ = 1;
};

Tokens::Tokens(parallel::Cut cut, TokenGroups groups)
    : cut_(cut), groups_(std::move(groups)), run_(cut_.all_patches()) {
  const comm::Group &ulysses = groups_.ulysses, &ring = groups_.ring;
  TESSERA_CHECK(cut_.ranks == groups_.all.size &&
                    (groups_.displaced || cut_.ranks == ulysses.size * ring.size) &&
                    (groups_.displaced || groups_.all.rank == ring.rank * ulysses.size + ulysses.rank),
                "a cut into {} parts does not fit {} x {} (Ulysses x ring) of {} ranks", cut_.ranks,
                ulysses.size, ring.size, groups_.all.size);
  if (groups_.displaced && cut_.ranks > 1)
    displaced_ = std::make_unique<parallel::DisplacedExchange>(groups_.all, *groups_.displaced);
}

at::Tensor Tokens::local(const at::Tensor& x, int64_t dim) const {
  return parallel::select_ranges(x, dim, cut_.tokens(run_, rank()));
}

at::Tensor Tokens::local_frames(const at::Tensor& x, int64_t dim) const {
  return cut_.axis == parallel::GridAxis::kRows ? x
                                                : parallel::select_ranges(x, dim, cut_.parts(run_, rank()));
}

int64_t Tokens::local_rows(int64_t rows, int64_t of_each) const {
  if (cut_.axis != parallel::GridAxis::kRows) return rows;
  int64_t local = 0;
  for (const Range& range : cut_.parts(run_, rank()))
    local += overlap(times(range, of_each), {0, rows}).length;
  return local;
}

at::Tensor Tokens::local_other(const at::Tensor& x, int64_t dim) const {
  if (cut_.patches > 1) return x;
  const Range own = split_evenly(x.size(dim), rank(), cut_.ranks);
  return x.narrow(dim, own.begin, own.length);
}

int64_t Tokens::local_other_length(int64_t length) const {
  return cut_.patches > 1 ? length : split_evenly(length, rank(), cut_.ranks).length;
}

bool Tokens::divides(Over over) const {
  return over == Over::kAll || (over == Over::kSpatial) == (cut_.axis == parallel::GridAxis::kRows);
}

at::Tensor Tokens::attention(const QueriesKeysValues& own, int64_t depth, Over over) {
  const int64_t batch = own.q.size(0), frames = held().frames;
  const QueriesKeysValues folded{fold(own.q, over, frames), fold(own.k, over, frames),
                                 fold(own.v, over, frames)};
  const at::Tensor attended = divides(over)
                                  ? attend(folded, depth, Sequence(cut_, run_, over), nullptr, nullptr)
                                  : ops::attention(folded.q, folded.k, folded.v, folded.q.size(2) / depth);
  return unfold(attended, over, batch);
}

at::Tensor Tokens::axial_attention(const at::Tensor& x, int64_t depth, Over over, const at::Tensor& angles,
                                   const AttentionLayers& layers) {
  const parallel::Grid own = held();
  if (!groups_.dsp || groups_.ulysses.size == 1 || !divides(over)) {
    const at::Tensor of_tokens = angles.defined() ? local_frames(angles, 0)
                                                        .unsqueeze(1)
                                                        .expand({own.frames, own.rows * own.columns, -1, -1})
                                                        .flatten(0, 1)
                                                  : angles;
    return layers.out(attention(layers.in(x, of_tokens), depth, over));
  }
  const Sequence sequence(cut_, run_, over);
  const std::vector<int64_t> lengths = of_ulysses(sequence);
  const at::Tensor folded = fold(x, over, own.frames);
  const at::Tensor whole = parallel::tokens_to_samples(folded, lengths, groups_.ulysses);
  at::Tensor of_tokens;
  if (angles.defined() && over == Over::kTemporal) {
    std::vector<Range> frames;
    for (int64_t i = 0; i < groups_.ulysses.size; ++i) {
      const std::vector<Range> parts = cut_.parts(run_, groups_.ring.rank * groups_.ulysses.size + i);
      frames.insert(frames.end(), parts.begin(), parts.end());
    }
    of_tokens = parallel::select_ranges(angles, 0, frames);
  } else {
    TESSERA_CHECK(!angles.defined(), "attention within frames has no angles by frame");
  }
  const at::Tensor attended =
      attend_together(layers.in(whole, of_tokens), depth, sequence, nullptr, nullptr, /*by_token=*/false);
  return unfold(parallel::samples_to_tokens(layers.out(attended), folded.size(0), lengths, groups_.ulysses),
                over, x.size(0));
}

at::Tensor Tokens::attention(const QueriesKeysValues& own, int64_t depth, const parallel::Cut& cut) {
  return attend(own, depth, Sequence(cut, run_, Over::kAll), nullptr, nullptr);
}

std::pair<at::Tensor, at::Tensor> Tokens::joint_attention(const QueriesKeysValues& own,
                                                          const QueriesKeysValues& other,
                                                          int64_t other_length, int64_t depth) {
  TESSERA_CHECK(other.q.size(1) == local_other_length(other_length),
                "{} local tokens do not fit another sequence of {} tokens", other.q.size(1), other_length);
  if (cut_.patches > 1) {
    at::Tensor of_other;
    at::Tensor attended = attend(own, depth, Sequence(cut_, run_, Over::kAll), &other, &of_other);
    return {attended, of_other};
  }
  // Appends a rank's part of the other sequence to its tokens; the two together are cut like any sequence.
  const QueriesKeysValues both{at::cat({own.q, other.q}, 1), at::cat({own.k, other.k}, 1),
                               at::cat({own.v, other.v}, 1)};
  const at::Tensor attended =
      attend(both, depth, Sequence(cut_, run_, Over::kAll, other_length), nullptr, nullptr);
  const int64_t length = own.q.size(1);
  return {attended.narrow(1, 0, length), attended.narrow(1, length, other.q.size(1))};
}

std::vector<int64_t> Tokens::of_ulysses(const Sequence& sequence) const {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < groups_.ulysses.size; ++i)
    lengths.push_back(sequence.length(groups_.ring.rank * groups_.ulysses.size + i));
  return lengths;
}

at::Tensor Tokens::attend(const QueriesKeysValues& own, int64_t depth, const Sequence& sequence,
                          const QueriesKeysValues* other, at::Tensor* of_other) {
  if (displaced_) return displaced_attend(own, own.q.size(2) / depth, sequence);
  const int64_t units = own.k.size(2) / depth;  // key heads, each with the queries that share it
  const std::vector<int64_t> lengths = of_ulysses(sequence);
  const std::vector<at::Tensor> parts =
      parallel::tokens_to_heads({own.q, own.k, own.v}, units, lengths, groups_.ulysses);
  std::optional<QueriesKeysValues> other_by_heads;
  if (other != nullptr) {
    const auto share = [&](const at::Tensor& x) { return parallel::own_heads(x, units, groups_.ulysses); };
    other_by_heads = {share(other->q), share(other->k), share(other->v)};
    *of_other = at::empty(other_by_heads->q.sizes(), own.q.options());
  }
  // If heads return to tokens, the output is laid out token by token, so that each rank's share is
  // contiguous.
  const bool by_token = groups_.ulysses.size > 1;
  at::Tensor attended = attend_together({parts[0], parts[1], parts[2]}, depth, sequence,
                                        other_by_heads ? &*other_by_heads : nullptr, of_other, by_token);
  if (!by_token) return attended;
  if (other_by_heads) {
    *of_other = comm::all_gather(*of_other, 2, times(groups_.ulysses.parts(units), own.q.size(2) / units),
                                 groups_.ulysses);
  }
  return parallel::heads_to_tokens(attended.transpose(0, 1).contiguous(), own.q.size(2), units, lengths,
                                   groups_.ulysses);
}

at::Tensor Tokens::attend_together(const QueriesKeysValues& whole, int64_t depth, const Sequence& sequence,
                                   const QueriesKeysValues* other, at::Tensor* of_other, bool by_token) {
  const at::Tensor& q = whole.q;
  const auto room = [&] {
    return by_token ? at::empty({q.size(1), q.size(0), q.size(2)}, q.options()).transpose(0, 1)
                    : at::empty(q.sizes(), q.options());
  };
  const int64_t heads = q.size(2) / depth;
  at::Tensor attended;
  if (cut_.patches > 1) {
    const CacheEntry& entry = update_cache(whole, depth, sequence, other);
    entry.keys_values->attend(attended = room(), q, entry.seen);
    if (other != nullptr) entry.keys_values->attend(*of_other, other->q, entry.seen);
  } else if (groups_.ring.size > 1) {
    attended = ring_attend(whole, heads, sequence);
  } else if (!by_token || !q.is_cpu()) {
    attended = ops::attention(q, whole.k, whole.v, heads);
  } else {
    ops::attention_into(attended = room(), q, whole.k, whole.v, heads);
  }
  return attended;
}

at::Tensor Tokens::displaced_attend(const QueriesKeysValues& own, int64_t heads, const Sequence& sequence) {
  const comm::Group& group = groups_.all;
  const int64_t width = own.k.size(2);
  std::vector<Range> ranges;
  for (int64_t peer = 0; peer < group.size; ++peer)
    ranges.push_back({ranges.empty() ? 0 : ranges.back().end(), sequence.length(peer)});
  parallel::DisplacedExchange::Place& place = displaced_->next([&] {
    parallel::DisplacedExchange::Transfers parts{.travel = parallel::Travel::kAlone};
    const at::Tensor all = at::empty({ranges.back().end(), own.k.size(0), 2 * width}, own.k.options());
    const auto part = [&](const Range& range) { return all.narrow(0, range.begin, range.length); };
    for (int64_t peer = 0; peer < group.size; ++peer) {
      const bool is_other = peer != group.rank;
      parts.sends.push_back(part(is_other ? ranges[static_cast<size_t>(group.rank)] : Range()));
      parts.receives.push_back(is_other ? part(ranges[static_cast<size_t>(peer)]) : parts.sends.back());
    }
    parts.whole = all;
    return parts;
  });
  const Range& mine = ranges[static_cast<size_t>(group.rank)];
  at::Tensor seen = place.parts.whole;  // [N, B, 2 * H * D]
  fill_side_by_side(seen.narrow(0, mine.begin, mine.length), own.k, own.v);
  if (displaced_->is_synchronous()) {
    displaced_->exchange(place);
  } else {
    if (!place.has_come) seen = seen.narrow(0, mine.begin, mine.length);
    displaced_->post(place);
  }
  const at::Tensor both = seen.transpose(0, 1);
  return ops::attention(own.q, both.narrow(2, 0, width), both.narrow(2, width, width), heads);
}

at::Tensor Tokens::ring_attend(const QueriesKeysValues& own, int64_t heads, const Sequence& sequence) const {
  std::vector<int64_t> lengths;
  for (const Range& part : of_ring(sequence)) lengths.push_back(part.length);
  const int64_t width = own.k.size(2);
  const at::Tensor keys_values = at::empty({own.k.size(1), own.k.size(0), 2 * width}, own.k.options());
  fill_side_by_side(keys_values, own.k, own.v);
  ops::PartialAttention attention(own.q, heads);
  parallel::ring_pass(keys_values, lengths, groups_.ring, [&](const at::Tensor& block) {
    const at::Tensor both = block.transpose(0, 1);
    attention.add(both.narrow(2, 0, width), both.narrow(2, width, width));
  });
  return attention.result();
}

const Tokens::CacheEntry& Tokens::update_cache(const QueriesKeysValues& own, int64_t depth,
                                               const Sequence& sequence, const QueriesKeysValues* other) {
  CacheEntry& entry = kv_caches_[{place_.first, place_.second++}];
  const int64_t width = own.k.size(2), before = other == nullptr ? 0 : other->k.size(1);
  if (!entry.keys_values) {
    const int64_t all = before + sequence.begin_of_patch(cut_.patches);
    entry.keys_values.emplace(own.k.size(0), all, width / depth, depth, own.k.options());
  }
  ops::KvCache& memory = *entry.keys_values;
  if (other != nullptr) memory.write(0, other->k, other->v);

  // The cache is ordered by patch, then by rank. Tokens from the Ulysses group are ordered by rank.
  std::vector<Range> own_order;  // the local tokens in the order of the cache
  for (int64_t patch = run_.begin; patch < run_.end(); ++patch) {
    int64_t to = before + sequence.begin_of_patch(patch, groups_.ring.rank * groups_.ulysses.size), from = 0;
    for (int64_t i = 0; i < groups_.ulysses.size; ++i) {
      const int64_t rank = groups_.ring.rank * groups_.ulysses.size + i;
      for (const Range& range : sequence.within(patch, rank)) {
        own_order.push_back({from + range.begin, range.length});
        memory.write(to, own.k.narrow(1, own_order.back().begin, range.length),
                     own.v.narrow(1, own_order.back().begin, range.length));
        to += range.length;
      }
      from += sequence.length(rank);
    }
  }
  if (groups_.ring.size > 1) {
    const std::vector<Range> parts = of_ring(sequence);
    at::Tensor whole = at::empty({parts.back().end(), own.k.size(0), 2 * width}, own.k.options());
    const Range& mine = parts[static_cast<size_t>(groups_.ring.rank)];
    fill_side_by_side(whole.narrow(0, mine.begin, mine.length), parallel::select_ranges(own.k, 1, own_order),
                      parallel::select_ranges(own.v, 1, own_order));
    comm::all_gather_into(whole, parts, groups_.ring);
    for (int64_t rank = 0; rank < groups_.ring.size; ++rank) {
      if (rank == groups_.ring.rank) continue;
      int64_t from = parts[static_cast<size_t>(rank)].begin;
      for (int64_t patch = run_.begin; patch < run_.end(); ++patch) {
        const int64_t to = sequence.begin_of_patch(patch, rank * groups_.ulysses.size);
        const int64_t count = sequence.begin_of_patch(patch, (rank + 1) * groups_.ulysses.size) - to;
        const at::Tensor both = whole.narrow(0, from, count).transpose(0, 1);
        memory.write(before + to, both.narrow(2, 0, width), both.narrow(2, width, width));
        from += count;
      }
    }
  }
  entry.seen = std::max(entry.seen, before + sequence.begin_of_patch(run_.end()));
  return entry;
}

std::vector<Range> Tokens::of_ring(const Sequence& sequence) const {
  std::vector<Range> parts;
  for (int64_t rank = 0; rank < groups_.ring.size; ++rank) {
    int64_t length = 0;
    for (int64_t i = 0; i < groups_.ulysses.size; ++i)
      length += sequence.length(rank * groups_.ulysses.size + i);
    parts.push_back({parts.empty() ? 0 : parts.back().end(), length});
  }
  return parts;
}

}  // namespace tessera::nn
