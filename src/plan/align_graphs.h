// Brings the graphs of all ranks into one form, so that one program serves all of them.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "plan/graph.h"

namespace tessera::plan {

// The ranks that a rank exchanges messages with, directly or through others, including itself; in order.
std::vector<int64_t> partners_of(std::span<const Graph> world, int64_t rank);
// Returns their graphs, in which ranks are numbered from 0.
std::vector<Graph> graphs_of(std::span<const Graph> world, const std::vector<int64_t>& partners);

// The arguments of a program that all ranks run. A weight may be read in several parts, each of which is an
// argument.
struct SharedArguments {
  std::vector<TensorShape> shapes;  // the smallest that hold those of every rank
  // By rank, in the order of `shapes`. Arguments that only other ranks have, because they add them for all or
  // because they belong to their samples, are zero (GraphArgument::is_zero) and have no value.
  std::vector<std::vector<GraphArgument>> of_ranks;
};

// Throws Error(kUsage) for arguments that have the same name but differ in dtype or in the number of
// dimensions.
SharedArguments share_arguments(std::span<const Graph> ranks);

// The same for results: one that only other ranks have has no value.
struct SharedResults {
  std::vector<TensorShape> shapes;
  std::vector<std::vector<GraphResult>> of_ranks;
};
SharedResults share_results(std::span<const Graph> ranks);

// Returns the graphs with the same arguments, results, numbers of values and nodes; they differ in places, in
// contents of constants, and in the parts of weights. Returns nothing if ranks compute different things, or
// parts of different shapes.
std::optional<std::vector<Graph>> align_graphs(std::span<const Graph> ranks);

}  // namespace tessera::plan
