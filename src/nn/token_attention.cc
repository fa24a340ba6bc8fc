#include "nn/token_attention.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "comm/collectives.h"
#include "core/device.h"
#include "ops/attention.h"
#include "parallel/ring.h"

namespace tessera::nn {
namespace {

// Copies k, v [B, N, C] side by side into `to` [N, B, 2 * C], which is one contiguous message.
void fill_side_by_side(const at::Tensor& to, const at::Tensor& k, const at::Tensor& v) {
  to.narrow(2, 0, k.size(2)).copy_(k.transpose(0, 1));
  to.narrow(2, k.size(2), k.size(2)).copy_(v.transpose(0, 1));
}

// Returns the keys and values of such a message, [B, N, C].
std::pair<at::Tensor, at::Tensor> separate(const at::Tensor& message) {
  const at::Tensor both = message.transpose(0, 1);
  const int64_t width = both.size(2) / 2;
  return {both.narrow(2, 0, width), both.narrow(2, width, width)};
}

// Attends to the keys of all tokens, which this rank has.
class WholeAttention final : public TokenAttention {
 public:
  at::Tensor operator()(const AttentionCall& call) override {
    const auto& [q, k, v] = call.own;
    if (!call.by_token || !is_for_cpu(q.device())) return ops::attention(q, k, v, call.heads());
    at::Tensor attended = call.room();
    ops::attention_into(attended, q, k, v, call.heads());
    return attended;
  }
};

// Gathers the keys and values of all ranks of the gather group, side by side.
at::Tensor gather_keys_values(const AttentionCall& call) {
  const auto& [q, k, v] = call.own;
  const comm::Group& gather = call.sequence.groups().gather;
  const std::vector<Range> parts = call.sequence.of_gather();
  at::Tensor whole = at::empty({parts.back().end(), k.size(0), 2 * k.size(2)}, k.options());
  const Range& mine = parts[static_cast<size_t>(gather.rank)];
  fill_side_by_side(whole.narrow(0, mine.begin, mine.length), k, v);
  comm::all_gather_into(whole, parts, gather);
  return whole;
}

// Each rank gathers the keys and values of all tokens before it attends. If it attended to its own block
// meanwhile and merged the parts, a step would take 1.03 times as long if messages are short, and equally
// long if they are long (ARCHITECTURE.md).
class GatherAttention final : public TokenAttention {
 public:
  at::Tensor operator()(const AttentionCall& call) override {
    const auto [keys, values] = separate(gather_keys_values(call));
    const QueriesKeysValues own{call.own.q, keys, values};
    return whole_({.own = own, .depth = call.depth, .sequence = call.sequence, .by_token = call.by_token});
  }

 private:
  WholeAttention whole_;
};

// The keys and values of a gather group travel round the ring.
class RingAttention final : public TokenAttention {
 public:
  explicit RingAttention(const comm::Group& ring) : ring_(ring) {}

  at::Tensor operator()(const AttentionCall& call) override {
    std::vector<int64_t> lengths;
    for (const Range& part : call.sequence.of_ring()) lengths.push_back(part.length);
    ops::PartialAttention attention(call.own.q, call.heads());
    parallel::ring_pass(gather_keys_values(call), lengths, ring_, [&](const at::Tensor& block) {
      const auto [keys, values] = separate(block);
      attention.add(keys, values);
    });
    return attention.result();
  }

 private:
  const comm::Group& ring_;
};

// Queries of the current patches also attend to the keys of the others, as each layer last saw them
// (PipeFusion). Tokens that it has never seen are left out. Caches are ordered by patch, then by part.
class CachedAttention final : public TokenAttention {
 public:
  explicit CachedAttention(const TokenGroups& groups) : groups_(groups) {}

  void enter_block(int64_t block) override { place_ = {block, 0}; }

  at::Tensor operator()(const AttentionCall& call) override {
    const Entry& entry = update(call);
    at::Tensor attended = call.room();
    entry.keys_values->attend(attended, call.own.q, entry.seen);
    return attended;
  }

 private:
  struct Entry {
    std::optional<ops::KvCache> keys_values;
    int64_t seen = 0;  // number of valid tokens, from the first on
  };

  const Entry& update(const AttentionCall& call) {
    Entry& entry = caches_[{place_.first, place_.second++}];
    const TokenSequence& sequence = call.sequence;
    const at::Tensor& k = call.own.k;
    if (!entry.keys_values) {
      const int64_t all = sequence.begin_of_patch(sequence.patches());
      entry.keys_values.emplace(k.size(0), all, k.size(2) / call.depth, call.depth, k.options());
    }
    const std::vector<Range> order = write_own(*entry.keys_values, call);
    if (groups_.ulysses_groups() > 1) write_others(*entry.keys_values, call, order);
    entry.seen = std::max(entry.seen, sequence.begin_of_patch(sequence.run().end()));
    return entry;
  }

  // Writes the tokens of the Ulysses group; returns them in the order of the cache.
  std::vector<Range> write_own(ops::KvCache& cache, const AttentionCall& call) const {
    const auto& [q, k, v] = call.own;
    const int64_t own_group = groups_.own_ulysses_group();
    std::vector<Range> order;
    for (int64_t patch = call.sequence.run().begin; patch < call.sequence.run().end(); ++patch) {
      int64_t to = call.sequence.begin_of_patch(patch, groups_.part(own_group, 0)), from = 0;
      for (int64_t i = 0; i < groups_.ulysses.size; ++i) {
        const int64_t part = groups_.part(own_group, i);
        for (const Range& range : call.sequence.within(patch, part)) {
          order.push_back({from + range.begin, range.length});
          cache.write(to, k.narrow(1, order.back().begin, range.length),
                      v.narrow(1, order.back().begin, range.length));
          to += range.length;
        }
        from += call.sequence.length(part);
      }
    }
    return order;
  }

  // Exchanges with the other Ulysses groups, those of the gather group and then those of the ring, and writes
  // their tokens.
  void write_others(ops::KvCache& cache, const AttentionCall& call, const std::vector<Range>& order) const {
    const auto& [q, k, v] = call.own;
    const std::vector<Range> in_ring = call.sequence.of_ring(), in_gather = call.sequence.of_gather();
    at::Tensor whole = at::empty({in_ring.back().end(), k.size(0), 2 * k.size(2)}, k.options());
    const Range& of_gather = in_ring[static_cast<size_t>(groups_.ring.rank)];
    const Range& mine = in_gather[static_cast<size_t>(groups_.gather.rank)];
    at::Tensor gathered = whole.narrow(0, of_gather.begin, of_gather.length);
    fill_side_by_side(gathered.narrow(0, mine.begin, mine.length), parallel::select_ranges(k, 1, order),
                      parallel::select_ranges(v, 1, order));
    comm::all_gather_into(gathered, in_gather, groups_.gather);
    comm::all_gather_into(whole, in_ring, groups_.ring);
    int64_t from = 0;
    for (int64_t group = 0; group < groups_.ulysses_groups(); ++group) {
      for (int64_t patch = call.sequence.run().begin; patch < call.sequence.run().end(); ++patch) {
        const int64_t to = call.sequence.begin_of_patch(patch, groups_.part(group, 0));
        const int64_t count = call.sequence.begin_of_patch(patch, groups_.part(group + 1, 0)) - to;
        const auto [keys, values] = separate(whole.narrow(0, from, count));
        if (group != groups_.own_ulysses_group()) cache.write(to, keys, values);
        from += count;
      }
    }
  }

  const TokenGroups& groups_;
  std::pair<int64_t, int64_t> place_{0, 0};  // block, call
  std::map<std::pair<int64_t, int64_t>, Entry> caches_;
};

// Queries attend to the keys of other ranks as they were in the previous step (DistriFusion).
class DisplacedAttention final : public TokenAttention {
 public:
  DisplacedAttention(const comm::Group& group, parallel::DisplacedExchange& exchange)
      : group_(group), exchange_(exchange) {}

  at::Tensor operator()(const AttentionCall& call) override {
    std::vector<Range> ranges;
    for (int64_t peer = 0; peer < group_.size; ++peer)
      ranges.push_back({ranges.empty() ? 0 : ranges.back().end(), call.sequence.length(peer)});
    parallel::DisplacedExchange::Place& place =
        exchange_.next([&] { return transfers_of(ranges, call.own.k); });
    const Range& mine = ranges[static_cast<size_t>(group_.rank)];
    at::Tensor seen = place.parts.whole;  // [N, B, 2 * K * D]
    fill_side_by_side(seen.narrow(0, mine.begin, mine.length), call.own.k, call.own.v);
    if (exchange_.is_synchronous()) {
      exchange_.exchange(place);
    } else {
      if (!place.has_come) seen = seen.narrow(0, mine.begin, mine.length);
      exchange_.post(place);
    }
    const auto [keys, values] = separate(seen);
    return ops::attention(call.own.q, keys, values, call.heads());
  }

 private:
  parallel::DisplacedExchange::Transfers transfers_of(const std::vector<Range>& ranges,
                                                      const at::Tensor& k) const {
    parallel::DisplacedExchange::Transfers parts{.travel = parallel::Travel::kAlone};
    const at::Tensor all = at::empty({ranges.back().end(), k.size(0), 2 * k.size(2)}, k.options());
    const auto part = [&](const Range& range) { return all.narrow(0, range.begin, range.length); };
    for (int64_t peer = 0; peer < group_.size; ++peer) {
      const bool is_other = peer != group_.rank;
      parts.sends.push_back(part(is_other ? ranges[static_cast<size_t>(group_.rank)] : Range()));
      parts.receives.push_back(is_other ? part(ranges[static_cast<size_t>(peer)]) : parts.sends.back());
    }
    parts.whole = all;
    return parts;
  }

  const comm::Group& group_;
  parallel::DisplacedExchange& exchange_;
};

}  // namespace

at::Tensor AttentionCall::room() const {
  const at::Tensor& q = own.q;
  return by_token ? at::empty({q.size(1), q.size(0), q.size(2)}, q.options()).transpose(0, 1)
                  : at::empty(q.sizes(), q.options());
}

std::unique_ptr<TokenAttention> make_token_attention(const TokenGroups& groups, int64_t patches,
                                                     parallel::DisplacedExchange* exchange) {
  if (exchange != nullptr) return std::make_unique<DisplacedAttention>(groups.all, *exchange);
  if (patches > 1) return std::make_unique<CachedAttention>(groups);
  if (groups.ring.size > 1) return std::make_unique<RingAttention>(groups.ring);
  if (groups.gather.size > 1) return std::make_unique<GatherAttention>();
  return std::make_unique<WholeAttention>();
}

}  // namespace tessera::nn
