#include "plan/stablehlo_collectives.h"

#include <c10/util/accumulate.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "core/error.h"

namespace tessera::plan {
namespace {

// The smallest sizes that hold all of these; tensors without elements need no room.
class Covering {
 public:
  void add(const Sizes64& sizes) {
    if (sizes_.empty() || (c10::multiply_integers(sizes_) == 0 && c10::multiply_integers(sizes) > 0)) {
      sizes_ = sizes;
    } else if (c10::multiply_integers(sizes) > 0) {
      TESSERA_CHECK(sizes.size() == sizes_.size(), "messages of {} and {}", fmt::join(sizes, "x"),
                    fmt::join(sizes_, "x"));
      for (size_t i = 0; i < sizes.size(); ++i) sizes_[i] = std::max(sizes_[i], sizes[i]);
    }
  }
  const Sizes64& sizes() const { return sizes_; }

 private:
  Sizes64 sizes_;
};

MlirValue padded(MlirBuilder& b, const MlirValue& x, const Sizes64& sizes) {
  if (c10::multiply_integers(x.sizes()) == 0) return b.filled(0, {sizes, x.type.dtype});
  Sizes64 behind = sizes;
  for (size_t i = 0; i < behind.size(); ++i) behind[i] -= x.sizes()[i];
  return b.pad(x, Sizes64(sizes.size()), behind);
}

MlirValue cut(MlirBuilder& b, const MlirValue& x, const Sizes64& sizes) {
  if (c10::multiply_integers(sizes) == 0) return b.filled(0, {sizes, x.type.dtype});
  return b.slice(x, Sizes64(sizes.size()), sizes);
}

Sizes64 with_first(int64_t count, Sizes64 sizes) {
  sizes.insert(sizes.begin(), count);
  return sizes;
}

// A piece for each rank of the group -> [P, ..sizes].
MlirValue stacked(MlirBuilder& b, const std::vector<MlirValue>& pieces, const Sizes64& sizes) {
  std::vector<MlirValue> all;
  for (const MlirValue& each : pieces) all.push_back(b.reshape(padded(b, each, sizes), with_first(1, sizes)));
  return b.concat(all, 0);
}

// The inverse: piece number i, with these sizes.
MlirValue piece_of(MlirBuilder& b, const MlirValue& all, size_t i, const Sizes64& sizes) {
  if (c10::multiply_integers(sizes) == 0) return b.filled(0, {sizes, all.type.dtype});
  Sizes64 begins(all.sizes().size());
  begins.front() = static_cast<int64_t>(i);
  return b.reshape(b.slice(all, begins, with_first(1, sizes)), sizes);
}

// The permutation that moves the first dimension before dimension `dim` of the others, and its inverse.
Sizes64 first_before(int64_t dim, int64_t dims) {
  Sizes64 order(static_cast<size_t>(dims));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::rotate(order.begin(), order.begin() + 1, order.begin() + dim + 1);
  return order;
}
Sizes64 before_to_first(int64_t dim, int64_t dims) {
  Sizes64 order(static_cast<size_t>(dims));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::rotate(order.begin(), order.begin() + dim, order.begin() + dim + 1);
  return order;
}

Sizes64 with_length(Sizes64 sizes, int64_t dim, int64_t length) {
  sizes[static_cast<size_t>(dim)] = length;
  return sizes;
}

// Cuts x along a dimension into a piece for each rank of the group -> [P, ..sizes].
MlirValue cut_up(MlirBuilder& b, const MlirValue& x, int64_t dim, const Sizes64& lengths,
                 const Sizes64& sizes) {
  const auto ranks = std::ssize(lengths);
  const bool are_whole = std::all_of(lengths.begin(), lengths.end(), [&](int64_t length) {
    return with_length(x.sizes(), dim, length) == sizes;
  });
  if (are_whole) {
    Sizes64 by_rank(x.sizes().begin(), x.sizes().begin() + dim);
    by_rank.push_back(ranks);
    by_rank.insert(by_rank.end(), sizes.begin() + dim, sizes.end());
    return b.transpose(b.reshape(x, by_rank), before_to_first(dim, x.dims() + 1));
  }
  std::vector<MlirValue> pieces;
  Sizes64 begins(x.sizes().size());
  for (const int64_t length : lengths) {
    pieces.push_back(b.slice(x, begins, with_length(x.sizes(), dim, length)));
    begins[static_cast<size_t>(dim)] += length;
  }
  return stacked(b, pieces, sizes);
}

// [P, ..], in which each rank's piece has these sizes -> the pieces joined along a dimension.
MlirValue joined(MlirBuilder& b, const MlirValue& all, int64_t dim, const std::vector<Sizes64>& pieces) {
  const bool are_whole = std::all_of(pieces.begin(), pieces.end(), [&](const Sizes64& each) {
    return with_first(std::ssize(pieces), each) == all.sizes();
  });
  if (are_whole) {
    const MlirValue moved = b.transpose(all, first_before(dim, all.dims()));
    return b.reshape(moved, with_length(pieces.front(), dim,
                                        std::ssize(pieces) * pieces.front()[static_cast<size_t>(dim)]));
  }
  std::vector<MlirValue> parts;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (c10::multiply_integers(pieces[i]) > 0) parts.push_back(piece_of(b, all, i, pieces[i]));
  }
  return parts.empty() ? piece_of(b, all, 0, pieces.front()) : b.concat(parts, dim);
}

// The groups of all ranks: "replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>"
std::string groups_of(const CollectiveCall& call) {
  std::set<std::vector<int64_t>> groups;
  for (const GraphNode* const node : call.nodes) groups.insert(node->collective.ranks);
  std::vector<std::string> lists;
  for (const auto& group : groups) lists.push_back(fmt::format("[{}]", fmt::join(group, ", ")));
  return fmt::format("replica_groups = dense<[{}]> : tensor<{}x{}xi64>", fmt::join(lists, ", "),
                     groups.size(), groups.begin()->size());
}

// The largest sizes that any rank reads.
Sizes64 largest_read(const CollectiveCall& call, size_t i = 0) {
  Covering covering;
  for (size_t rank = 0; rank < call.nodes.size(); ++rank) covering.add(call.read_sizes(rank, i));
  return covering.sizes();
}

std::vector<MlirValue> pack_padded(Lowering& lowering, const CollectiveCall& call) {
  return {padded(lowering.builder(), lowering.read(call.node(), 0), largest_read(call))};
}

void unpack_cut(Lowering& lowering, const CollectiveCall& call, const std::vector<MlirValue>& received) {
  lowering.write(call.node(), 0, cut(lowering.builder(), received.front(), call.written_sizes(call.rank, 0)));
}

MlirValue all_reduce(MlirBuilder& b, const CollectiveCall& call, const MlirValue& packed) {
  return b.collective("all_reduce", packed, groups_of(call), /*is_sum=*/true, packed.type);
}

MlirValue send_receive(MlirBuilder& b, const CollectiveCall& call, const MlirValue& packed) {
  std::vector<std::string> pairs;
  for (size_t rank = 0; rank < call.nodes.size(); ++rank)
    pairs.push_back(fmt::format("[{}, {}]", rank, call.nodes[rank]->collective.to));
  const std::string words = fmt::format("source_target_pairs = dense<[{}]> : tensor<{}x2xi64>",
                                        fmt::join(pairs, ", "), pairs.size());
  return b.collective("collective_permute", packed, words, false, packed.type);
}

MlirValue all_gather(MlirBuilder& b, const CollectiveCall& call, const MlirValue& packed) {
  const std::string words = fmt::format("all_gather_dim = 0 : i64, {}", groups_of(call));
  const TensorShape all{with_first(std::ssize(call.members()), packed.sizes()), packed.type.dtype};
  const MlirValue one = b.reshape(packed, with_first(1, packed.sizes()));
  return b.collective("all_gather", one, words, false, all);
}

void unpack_gathered(Lowering& lowering, const CollectiveCall& call, const std::vector<MlirValue>& received) {
  std::vector<Sizes64> pieces;
  for (const int64_t member : call.members())
    pieces.push_back(call.read_sizes(static_cast<size_t>(member), 0));
  lowering.write(call.node(), 0,
                 joined(lowering.builder(), received.front(), call.node().collective.dim, pieces));
}

std::vector<MlirValue> pack_scattered(Lowering& lowering, const CollectiveCall& call) {
  Covering covering;
  for (size_t rank = 0; rank < call.nodes.size(); ++rank) covering.add(call.written_sizes(rank, 0));
  const GraphCollective& collective = call.node().collective;
  return {cut_up(lowering.builder(), lowering.read(call.node(), 0), collective.dim, collective.parts,
                 covering.sizes())};
}

MlirValue reduce_scatter(MlirBuilder& b, const CollectiveCall& call, const MlirValue& packed) {
  const std::string words = fmt::format("scatter_dimension = 0 : i64, {}", groups_of(call));
  const Sizes64 one = with_length(packed.sizes(), 0, 1);
  const MlirValue sum =
      b.collective("reduce_scatter", packed, words, /*is_sum=*/true, {one, packed.type.dtype});
  return b.reshape(sum, {one.begin() + 1, one.end()});
}

// [P, ..], one piece for each rank of the group -> the pieces that those ranks hold for this rank.
MlirValue all_to_all(MlirBuilder& b, const CollectiveCall& call, const MlirValue& packed) {
  const std::string words =
      fmt::format("split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = {} : i64, {}",
                  packed.size(0), groups_of(call));
  return b.collective("all_to_all", packed, words, false, packed.type);
}

// Reads and writes a tensor for each rank of the group.
std::vector<MlirValue> pack_tensors(Lowering& lowering, const CollectiveCall& call) {
  Covering covering;
  for (size_t rank = 0; rank < call.nodes.size(); ++rank) {
    for (size_t i = 0; i < call.nodes[rank]->reads.size(); ++i) covering.add(call.read_sizes(rank, i));
  }
  std::vector<MlirValue> sends;
  for (size_t i = 0; i < call.node().reads.size(); ++i) sends.push_back(lowering.read(call.node(), i));
  return {stacked(lowering.builder(), sends, covering.sizes())};
}

void unpack_tensors(Lowering& lowering, const CollectiveCall& call, const std::vector<MlirValue>& received) {
  for (size_t i = 0; i < call.node().writes.size(); ++i)
    lowering.write(call.node(), i,
                   piece_of(lowering.builder(), received.front(), i, call.written_sizes(call.rank, i)));
}

// Ulysses: reads queries, keys and values [B, n, heads * D] of the rank's n tokens; returns those of all N
// tokens for its own heads: [B, N, w]. The piece from rank p to rank q is [B, n of p, w of q].
std::vector<MlirValue> pack_heads(Lowering& lowering, const CollectiveCall& call) {
  std::vector<MlirValue> packed;
  for (size_t i = 0; i < call.node().reads.size(); ++i) {
    Covering covering;
    for (size_t rank = 0; rank < call.nodes.size(); ++rank) {
      for (const int64_t member : call.nodes[rank]->collective.ranks)
        covering.add(
            with_length(call.read_sizes(rank, i), 2, call.written_sizes(static_cast<size_t>(member), i)[2]));
    }
    Sizes64 widths;
    for (const int64_t member : call.members())
      widths.push_back(call.written_sizes(static_cast<size_t>(member), i)[2]);
    packed.push_back(cut_up(lowering.builder(), lowering.read(call.node(), i), 2, widths, covering.sizes()));
  }
  return packed;
}

void unpack_heads(Lowering& lowering, const CollectiveCall& call, const std::vector<MlirValue>& received) {
  for (size_t i = 0; i < received.size(); ++i) {
    std::vector<Sizes64> pieces;
    for (const int64_t member : call.members())
      pieces.push_back(with_length(call.written_sizes(call.rank, i), 1,
                                   call.read_sizes(static_cast<size_t>(member), i)[1]));
    lowering.write(call.node(), i, joined(lowering.builder(), received[i], 1, pieces));
  }
}

// The inverse: reads [N, B, w], returns [B, n, heads * D]. The piece from rank p to rank q is [n of q, B, w
// of p].
std::vector<MlirValue> pack_tokens(Lowering& lowering, const CollectiveCall& call) {
  const auto tokens = [&](int64_t member) { return call.written_sizes(static_cast<size_t>(member), 0)[1]; };
  Covering covering;
  for (size_t rank = 0; rank < call.nodes.size(); ++rank) {
    for (const int64_t member : call.nodes[rank]->collective.ranks)
      covering.add(with_length(call.read_sizes(rank, 0), 0, tokens(member)));
  }
  Sizes64 lengths;
  for (const int64_t member : call.members()) lengths.push_back(tokens(member));
  return {cut_up(lowering.builder(), lowering.read(call.node(), 0), 0, lengths, covering.sizes())};
}

void unpack_tokens(Lowering& lowering, const CollectiveCall& call, const std::vector<MlirValue>& received) {
  MlirBuilder& b = lowering.builder();
  const Sizes64& written = call.written_sizes(call.rank, 0);
  std::vector<Sizes64> pieces;
  for (const int64_t member : call.members())
    pieces.push_back({written[1], written[0], call.read_sizes(static_cast<size_t>(member), 0)[2]});
  lowering.write(call.node(), 0, b.transpose(joined(b, received.front(), 2, pieces), {1, 0, 2}));
}

}  // namespace

const Sizes64& CollectiveCall::read_sizes(size_t of_rank, size_t i) const {
  return graphs[of_rank].values[static_cast<size_t>(nodes[of_rank]->reads.at(i))].sizes;
}

const Sizes64& CollectiveCall::written_sizes(size_t of_rank, size_t i) const {
  return graphs[of_rank].values[static_cast<size_t>(nodes[of_rank]->writes.at(i))].sizes;
}

bool is_collective(const GraphNode& node) {
  return node.name.starts_with("collective.");
}

const CollectiveRule& collective_rule(const GraphNode& node) {
  static const std::map<std::string, CollectiveRule> rules = {
      {"collective.all_reduce", {pack_padded, all_reduce, unpack_cut}},
      {"collective.send_receive", {pack_padded, send_receive, unpack_cut}},
      {"collective.all_gather", {pack_padded, all_gather, unpack_gathered}},
      {"collective.reduce_scatter", {pack_scattered, reduce_scatter, unpack_cut}},
      {"collective.all_to_all", {pack_tensors, all_to_all, unpack_tensors}},
      {"collective.tokens_to_heads", {pack_heads, all_to_all, unpack_heads}},
      {"collective.heads_to_tokens", {pack_tokens, all_to_all, unpack_tokens}}};
  return rules.at(node.name);
}

}  // namespace tessera::plan
