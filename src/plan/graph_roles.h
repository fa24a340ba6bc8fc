// What the nodes of a graph are in the model.
#pragma once

#include <string>
#include <vector>

#include "plan/graph.h"

namespace tessera::plan {

// The role of each node: the key of its weights. A collective has its axis. Attention, which has no weights,
// has a role beside the layer that reads its result, through views, norms and collectives:
// "blocks.0.attn1.attention" before "blocks.0.attn1.to_out.0".
std::vector<std::string> roles_of(const Graph& graph);
// The part of the model to which each node belongs: the first word of its role. Of a node without one that of
// the nearest node of its block with a role: a norm belongs to what its result goes to, all else to what its
// values come from, or, if there is none, the other way round.
std::vector<std::string> parts_of(const Graph& graph);

}  // namespace tessera::plan
