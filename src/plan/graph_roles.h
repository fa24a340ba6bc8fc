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

}  // namespace tessera::plan
