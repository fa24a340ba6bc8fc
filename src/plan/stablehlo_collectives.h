// What ranks send each other, in StableHLO: collectives among the partitions that run a program.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "plan/stablehlo_lowering.h"

namespace tessera::plan {

// A collective as recorded by each rank of the world; `rank` is the one whose values are at hand.
struct CollectiveCall {
  std::span<const Graph> graphs;
  std::vector<const GraphNode*> nodes;  // by rank
  size_t rank = 0;

  const GraphNode& node() const { return *nodes[rank]; }
  const std::vector<int64_t>& members() const { return node().collective.ranks; }  // of the rank's group
  const Sizes64& read_sizes(size_t of_rank, size_t i) const;
  const Sizes64& written_sizes(size_t of_rank, size_t i) const;
};

// A collective has three steps. A rank does the first and the last by itself; the operation between them is
// the same for all ranks, so their parts are padded to the largest.
struct CollectiveRule {
  // Reads what the rank contributes, one value for each operation.
  std::vector<MlirValue> (*pack)(Lowering&, const CollectiveCall&);
  MlirValue (*exchange)(MlirBuilder&, const CollectiveCall&, const MlirValue& packed);
  // Writes what it receives.
  void (*unpack)(Lowering&, const CollectiveCall&, const std::vector<MlirValue>& received);
};

bool is_collective(const GraphNode& node);
const CollectiveRule& collective_rule(const GraphNode& node);

}  // namespace tessera::plan
