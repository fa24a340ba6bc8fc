// How the ranks of a layout divide the values of the program of one rank, in terms of Shardy (the `sdy`
// dialect, github.com/openxla/shardy): a partitioner then creates the programs of the ranks and inserts their
// messages.
//
// This code knows neither methods nor models. A method is represented by the graph that it gives to a rank;
// it divides whatever is smaller there than in the graph of a single rank.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plan/graph.h"

namespace tessera::plan {

struct MeshAxis {
  std::string name;
  int64_t size = 1;
};

// For a value: the axes that divide each dimension, starting with the one with the largest parts.
using ValueSharding = std::vector<std::vector<std::string>>;

// For the operands and results of a node: the constraints of each, several if ranks divide it first in one
// way and then in another.
struct NodeSharding {
  std::vector<std::vector<ValueSharding>> reads, writes;
};

struct ProgramSharding {
  std::vector<MeshAxis> mesh;            // starting with the axis whose neighbours are farthest apart
  std::vector<ValueSharding> arguments;  // in the order of the graph's arguments, including constants
  std::vector<ValueSharding> results;
  std::vector<NodeSharding> nodes;
};

// What the first rank of a method computes if there is no other method.
struct MethodGraph {
  std::vector<MeshAxis> axes;    // those over which it divides, starting with the one with the largest parts
  bool divides_samples = false;  // and nothing else: CFG and data parallelism
  Graph graph = {};
  // Whether sums over its ranks stay divided by tokens until a layer needs them whole, as between the layers
  // of tensor parallelism in Megatron-LM's sequence parallelism (arXiv:2205.05198).
  bool divides_sums = false;
};

struct ShardedGraph {
  Graph graph;
  ProgramSharding sharding;
};

// Shards the graph of one rank as the methods divide it. `methods` are in the order in which they divide a
// dimension that several of them do; `mesh` has all their axes. Operands and results of products and
// attention are constrained, and arguments and results of the program are sharded; the rest is left to the
// partitioner. Layers that were joined into one product are separated, and attention to several prompts is
// joined (plan/shardable_graph.h). Throws Error(kUsage) for parts of different sizes.
ShardedGraph shard_graph(Graph whole, std::span<const MethodGraph> methods, std::vector<MeshAxis> mesh);

// `<@mesh, [{}, {"tp"}]>`
std::string sdy_sharding(const ValueSharding& sharding);
// `sdy.mesh @mesh = <["dp"=2, "tp"=2]>`
std::string sdy_mesh(const std::vector<MeshAxis>& mesh);

}  // namespace tessera::plan
