// The roles of a graph's nodes in the model.
#pragma once

#include <string>
#include <vector>

#include "plan/graph.h"

namespace tessera::plan {

// The role of each node: the key of its weights, or the axis of a collective. Attention, which has no
// weights, has a role beside the layer that reads its result, through views, norms and collectives:
// "blocks.0.attn1.attention" before "blocks.0.attn1.to_out.0".
std::vector<std::string> roles_of(const Graph& graph);
// The part of the model to which each node belongs: the first word of its role. A node without a role takes
// the part of the nearest node with one in its block: a norm belongs to where its result goes, anything else
// to where its values come from, or, if there is no such node, the other way round.
std::vector<std::string> parts_of(const Graph& graph);

}  // namespace tessera::plan
