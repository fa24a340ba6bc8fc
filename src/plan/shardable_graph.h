// Brings the graph of one rank into a form that divides as the methods divide it. Values that a method cuts
// along a dimension become values of their own, instead of parts of a longer one, which a partitioner would
// have to move.
#pragma once

#include "plan/graph.h"

namespace tessera::plan {

// Splits a product of several layers with the same input into a product for each layer, and combines
// attention of samples to their own prompts, one after the other, into one operation: "attention_to_prompts"
// reads q [B, S, C], then keys and values [1, T, C] of each prompt; its attribute "samples" has the number of
// consecutive samples for each prompt.
Graph shardable_graph(Graph graph);

}  // namespace tessera::plan
