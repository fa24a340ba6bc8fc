// How the ranks of a layout divide the values of the program of one rank, as Shardy (the `sdy` dialect,
// github.com/openxla/shardy) says it: a partitioner then makes the programs of the ranks and puts in what
// they send each other.
//
// Nothing here knows a method or a model. A method is the graph that it makes of a rank, and what it divides
// is what is smaller there than in the graph of one rank.
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

// Of a value: the axes that divide each dimension, the one with the largest parts first.
using ValueSharding = std::vector<std::vector<std::string>>;

// Of the operands and results of a node: how each is constrained, several times where ranks divide it first
// one way and then another.
struct NodeSharding {
  std::vector<std::vector<ValueSharding>> reads, writes;
};

struct ProgramSharding {
  std::vector<MeshAxis> mesh;            // the axis whose neighbours are farthest apart first
  std::vector<ValueSharding> arguments;  // in the order of the graph's, constants too
  std::vector<ValueSharding> results;
  std::vector<NodeSharding> nodes;
};

// What the first rank of a method computes, where there is no other method.
struct MethodGraph {
  std::vector<MeshAxis> axes;    // over which it divides, the one with the largest parts first
  bool divides_samples = false;  // and nothing else: CFG and data
  Graph graph = {};
  // Sums over its ranks are divided by tokens until a layer takes them whole: what is between the layers of
  // tensor parallelism in Megatron-LM's sequence parallelism (arXiv:2205.05198).
  bool divides_sums = false;
};

struct ShardedGraph {
  Graph graph;
  ProgramSharding sharding;
};

// Shards the graph of one rank as the methods divide it. `methods` are in the order in which they divide a
// dimension that several of them do; `mesh` has all their axes. What products and attention read and write is
// constrained, arguments and results are sharded; the rest is left to the partitioner. Layers that were
// joined to one product, and attention to several prompts, are taken apart and joined
// (plan/shardable_graph.h). Throws Error(kUsage) for parts of different sizes.
ShardedGraph shard_graph(Graph whole, std::span<const MethodGraph> methods, std::vector<MeshAxis> mesh);

// `<@mesh, [{}, {"tp"}]>`
std::string sdy_sharding(const ValueSharding& sharding);
// `sdy.mesh @mesh = <["dp"=2, "tp"=2]>`
std::string sdy_mesh(const std::vector<MeshAxis>& mesh);

}  // namespace tessera::plan
