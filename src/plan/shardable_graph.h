// Brings the graph of one rank into a form that divides as the methods divide it. Values that a method cuts
// along one dimension are values of their own there, and no part of a longer one, which a partitioner would
// have to move.
#pragma once

#include "plan/graph.h"

namespace tessera::plan {

// Makes products of several layers of one input into a product for each layer, and attention of samples, one
// after the other, to prompts of their own into one operation: "attention_to_prompts" reads q [B, S, C], then
// keys and values [1, T, C] of each prompt, and says by "samples" how many samples in a row each prompt has.
Graph shardable_graph(Graph graph);

}  // namespace tessera::plan
