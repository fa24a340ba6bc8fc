// What ranks send each other, in StableHLO: collectives among the partitions that run one program.
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "plan/stablehlo_lowering.h"

namespace tessera::plan {
namespace {

// The groups of all ranks: "replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>"
std::string groups_of(const Lowering& lowering) {
  std::set<std::vector<int64_t>> groups;
  for (const GraphNode* const node : lowering.by_rank()) groups.insert(node->collective.ranks);
  std::vector<std::string> lists;
  for (const auto& group : groups) lists.push_back(fmt::format("[{}]", fmt::join(group, ", ")));
  return fmt::format("replica_groups = dense<[{}]> : tensor<{}x{}xi64>", fmt::join(lists, ", "),
                     groups.size(), groups.begin()->size());
}

void require_equal_parts(const GraphNode& node) {
  const Sizes64& parts = node.collective.parts;
  if (std::adjacent_find(parts.begin(), parts.end(), std::not_equal_to<>()) != parts.end())
    throw Error(ErrorKind::kUsage, "stablehlo",
                fmt::format("the ranks have parts of {}, and programs have equal parts only",
                            fmt::join(parts, ", ")));
}

[[noreturn]] void refuse_uneven() {
  throw Error(ErrorKind::kUsage, "stablehlo",
              "the ranks have parts of different sizes, and programs have equal parts only");
}

void all_reduce(Lowering& lowering, const GraphNode& node) {
  const MlirValue x = lowering.read(node, 0);
  lowering.write(
      node, 0, lowering.builder().collective("all_reduce", x, groups_of(lowering), /*is_sum=*/true, x.type));
}

void all_gather(Lowering& lowering, const GraphNode& node) {
  require_equal_parts(node);
  const MlirValue x = lowering.read(node, 0);
  const std::string words =
      fmt::format("all_gather_dim = {} : i64, {}", node.collective.dim, groups_of(lowering));
  lowering.write(
      node, 0,
      lowering.builder().collective("all_gather", x, words, false, lowering.type_of(node.writes[0])));
}

void reduce_scatter(Lowering& lowering, const GraphNode& node) {
  require_equal_parts(node);
  const MlirValue x = lowering.read(node, 0);
  const std::string words =
      fmt::format("scatter_dimension = {} : i64, {}", node.collective.dim, groups_of(lowering));
  lowering.write(
      node, 0,
      lowering.builder().collective("reduce_scatter", x, words, true, lowering.type_of(node.writes[0])));
}

// [P, ..], a part for each rank of the group -> the parts that they have for this one.
MlirValue exchanged(Lowering& lowering, const MlirValue& parts) {
  const std::string words =
      fmt::format("split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = {} : i64, {}",
                  parts.size(0), groups_of(lowering));
  return lowering.builder().collective("all_to_all", parts, words, false, parts.type);
}

// Reads and writes a tensor for each rank of the group, all of one shape.
void all_to_all(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  std::vector<MlirValue> sends;
  for (size_t i = 0; i < node.reads.size(); ++i) {
    const MlirValue each = lowering.read(node, i);
    if (each.sizes() != lowering.type_of(node.writes[i]).sizes ||
        each.sizes() != lowering.read(node, 0).sizes())
      refuse_uneven();
    Sizes64 one = each.sizes();
    one.insert(one.begin(), 1);
    sends.push_back(b.reshape(each, one));
  }
  const MlirValue all = b.concat(sends, 0);
  const MlirValue received = exchanged(lowering, all);
  Sizes64 begins(all.sizes().size()), lengths = all.sizes();
  lengths.front() = 1;
  for (size_t i = 0; i < node.writes.size(); ++i) {
    begins.front() = static_cast<int64_t>(i);
    lowering.write(node, i,
                   b.reshape(b.slice(received, begins, lengths), lowering.type_of(node.writes[i]).sizes));
  }
}

// Ulysses: reads queries, keys and values [B, n, heads * D] of the rank's tokens; gives those of its heads
// and all tokens, [B, P n, heads * D / P].
void tokens_to_heads(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const auto ranks = std::ssize(node.collective.ranks);
  for (size_t i = 0; i < node.reads.size(); ++i) {
    const MlirValue x = lowering.read(node, i);
    const int64_t batch = x.size(0), tokens = x.size(1), width = x.size(2) / ranks;
    if (lowering.type_of(node.writes[i]).sizes != Sizes64{batch, ranks * tokens, width}) refuse_uneven();
    const MlirValue by_rank = b.transpose(b.reshape(x, {batch, tokens, ranks, width}), {2, 0, 1, 3});
    const MlirValue received = b.transpose(exchanged(lowering, by_rank), {1, 0, 2, 3});
    lowering.write(node, i, b.reshape(received, {batch, ranks * tokens, width}));
  }
}

// The inverse: reads [P n, B, w], gives [B, n, P w].
void heads_to_tokens(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const auto ranks = std::ssize(node.collective.ranks);
  const MlirValue x = lowering.read(node, 0);
  const int64_t tokens = x.size(0) / ranks, batch = x.size(1), width = x.size(2);
  if (lowering.type_of(node.writes[0]).sizes != Sizes64{batch, tokens, ranks * width}) refuse_uneven();
  const MlirValue by_rank = b.reshape(x, {ranks, tokens, batch, width});
  const MlirValue received = b.transpose(exchanged(lowering, by_rank), {2, 1, 0, 3});
  lowering.write(node, 0, b.reshape(received, {batch, tokens, ranks * width}));
}

void send_receive(Lowering& lowering, const GraphNode& node) {
  const MlirValue x = lowering.read(node, 0);
  std::vector<std::string> pairs;
  const std::vector<const GraphNode*> nodes = lowering.by_rank();
  for (size_t rank = 0; rank < nodes.size(); ++rank)
    pairs.push_back(fmt::format("[{}, {}]", rank, nodes[rank]->collective.to));
  const std::string words = fmt::format("source_target_pairs = dense<[{}]> : tensor<{}x2xi64>",
                                        fmt::join(pairs, ", "), pairs.size());
  lowering.write(node, 0, lowering.builder().collective("collective_permute", x, words, false, x.type));
}

}  // namespace

const LoweringRules& collective_rules() {
  static const LoweringRules rules = {
      {"collective.all_reduce", all_reduce},           {"collective.all_gather", all_gather},
      {"collective.reduce_scatter", reduce_scatter},   {"collective.all_to_all", all_to_all},
      {"collective.tokens_to_heads", tokens_to_heads}, {"collective.heads_to_tokens", heads_to_tokens},
      {"collective.send_receive", send_receive}};
  return rules;
}

}  // namespace tessera::plan
