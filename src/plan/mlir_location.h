// Where a line of a program comes from, as one of MLIR's own locations: a name, "linear
// blocks.0.attn.to_q", with a place in a file as its child, whose file is the block and whose line is the
// number of the operation (mlir.llvm.org/docs/Dialects/Builtin, "Location Attributes").
#pragma once

#include <cstdint>
#include <string>

namespace tessera::plan {

struct NodeLocation {
  std::string name;       // of a node of the graph, or of what has none ("constant")
  std::string role = {};  // the key of its weights; of a collective its axis
  int64_t block = -1;     // -1 outside of blocks
  int64_t number = 0;     // of the node, from 1 on; 0 for what is no node
  bool operator==(const NodeLocation&) const = default;
};

// `loc("linear blocks.0.attn.to_q"("block 0":17:0))`; outside of blocks the file is "program".
std::string mlir_location(const NodeLocation& location);

}  // namespace tessera::plan
