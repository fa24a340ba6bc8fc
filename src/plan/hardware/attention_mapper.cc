// Attention that keeps its scores in the SRAM: a tile holds a block of queries and goes over blocks of keys
// and values, with the softmax of each block (arXiv:2205.14135).
#include <fmt/format.h>

#include <algorithm>

#include "plan/hardware/mapping.h"

namespace tessera::plan {
namespace {

constexpr double kScoreBytes = 4;       // scores and sums are in fp32
constexpr double kMergeOperations = 2;  // for each element of the output and block of keys: rescale and add

struct Split {
  int64_t problems = 1;           // pairs of a sample and a head in one part
  int64_t queries = 0, keys = 0;  // of a block
  bool overlaps = false;
};

double real(int64_t value) {
  return static_cast<double>(value);
}

double sram_bytes(const AttentionWork& work, const Split& split, int64_t element_bytes, bool overlaps) {
  const double queries = real(split.problems) * real(split.queries) * real(work.head_dim);
  const double keys = real(split.problems) * 2 * real(split.keys) * real(work.head_dim);
  // The problems of a part are computed one after the other.
  const double sums = real(split.queries) * real(split.keys + work.head_dim) * kScoreBytes;
  return (overlaps ? 2 : 1) * (2 * queries + keys) * real(element_bytes) + sums;  // queries: in and out
}

Cost cost_of(const AttentionWork& work, const Split& split, const Machine& machine,
             const std::string& dtype) {
  const double bytes = real(dtype_bytes(dtype)), head_dim = real(work.head_dim);
  const int64_t problems = work.batch * work.heads, query_blocks = divide_up(work.queries, split.queries);
  const int64_t key_blocks = divide_up(work.keys, split.keys);
  const int64_t parts = divide_up(problems, split.problems) * query_blocks;
  const int64_t turns = divide_up(parts, machine.tiles), active = std::min(machine.tiles, parts);
  // Tiles with queries of the same problem share its keys.
  const int64_t sharing = std::min(active, query_blocks), groups = divide_up(active, query_blocks);
  const double keys_bytes = real(split.problems) * 2 * real(work.keys) * head_dim * bytes;
  const double block_scores = real(split.queries) * real(split.keys);
  const double padded_dim = real(divide_up(work.head_dim, kGranule) * kGranule);
  const double block_time =
      4 * block_scores * padded_dim / machine.gemm_rates.at(dtype) +
      (kSoftmaxOperations * block_scores + kMergeOperations * real(split.queries) * head_dim) /
          machine.vector_rates.at(dtype);
  const double query_bytes = real(problems) * real(work.queries) * head_dim * bytes;
  const double active_queries =
      real(active * split.problems) * real(std::min(split.queries, work.queries)) * head_dim * bytes;
  Cost cost;
  cost.compute = real(turns * split.problems) * real(key_blocks) * block_time;
  cost.dram_bytes = 2 * query_bytes + real(turns) * real(groups) * keys_bytes;
  if (sharing > 1) {
    cost.noc_bytes = real(turns) * keys_bytes * real(sharing - 1) / real(sharing);
    cost.noc_hops = real(turns) * real(key_blocks);
  }
  cost.turns = real(turns) * real(key_blocks);
  cost.fill_bytes = std::min(active_queries, query_bytes) +
                    real(groups) * keys_bytes * std::min(1.0, real(split.keys) / real(work.keys));
  cost.drain_bytes = std::min(active_queries, query_bytes);
  cost.overlaps = split.overlaps;
  return cost;
}

struct Best {
  bool found = false;
  double latency = 0;
  Cost cost;
  Split split;
};

void try_split(Best& best, const AttentionWork& work, Split split, const Machine& machine,
               const std::string& dtype) {
  split.overlaps = sram_bytes(work, split, dtype_bytes(dtype), true) <= machine.sram_bytes;
  const Cost cost = cost_of(work, split, machine, dtype);
  const double latency = latency_of(cost, machine);
  if (best.found && latency >= best.latency) return;
  best = {true, latency, cost, split};
}

// For short sequences: several problems in one part, so that loads are not too small.
void try_whole_problems(Best& best, const AttentionWork& work, const Machine& machine,
                        const std::string& dtype) {
  Split split{1, tile_sizes(work.queries, kGranule).back(), tile_sizes(work.keys, kGranule).back(), false};
  for (const int64_t problems : tile_sizes(work.batch * work.heads, 1)) {
    split.problems = problems;
    if (sram_bytes(work, split, dtype_bytes(dtype), false) > machine.sram_bytes) return;
    try_split(best, work, split, machine, dtype);
  }
}

}  // namespace

Mapping map_attention(const AttentionWork& work, const Machine& machine, const std::string& dtype) {
  const std::vector<int64_t> all_queries = tile_sizes(work.queries, kGranule),
                             all_keys = tile_sizes(work.keys, kGranule);
  const int64_t bytes = dtype_bytes(dtype);
  Best best;
  for (const int64_t queries : all_queries) {
    for (const int64_t keys : all_keys) {
      const Split split{1, queries, keys, false};
      if (sram_bytes(work, split, bytes, false) > machine.sram_bytes) break;
      try_split(best, work, split, machine, dtype);
    }
  }
  try_whole_problems(best, work, machine, dtype);
  if (best.found) {
    std::string text = fmt::format("{} queries x {} keys", best.split.queries, best.split.keys);
    if (best.split.problems > 1) text += fmt::format(", {} heads at once", best.split.problems);
    if (!best.split.overlaps) text += ", single buffers";
    return make_mapping(best.cost, text, work, machine, dtype);
  }
  Mapping none;
  const Split least{1, all_queries[0], all_keys[0], false};
  none.obstacle =
      fmt::format("a block of {} x {} scores takes {:.1f} KiB, the SRAM has {:.1f} KiB", least.queries,
                  least.keys, sram_bytes(work, least, bytes, false) / 1024, machine.sram_bytes / 1024);
  return none;
}

}  // namespace tessera::plan
