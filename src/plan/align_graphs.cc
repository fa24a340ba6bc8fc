#include "plan/align_graphs.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "core/error.h"

namespace tessera::plan {
namespace {

// Returns what a rank's argument is called among those of all ranks. A constant has only its type as a name.
std::string name_of(const GraphArgument& argument, const TensorShape& type) {
  switch (argument.kind) {
    case GraphArgument::Kind::kInput:
      return "input " + argument.name;
    case GraphArgument::Kind::kWeight:
      return fmt::format("weight {} {}", argument.part, argument.key);
    case GraphArgument::Kind::kCache:
      return fmt::format("{} {} of {} dimensions", argument.name, at::toString(type.dtype),
                         type.sizes.size());
    case GraphArgument::Kind::kConstant:
      return fmt::format("constant {} {}", at::toString(type.dtype), fmt::join(type.sizes, "x"));
  }
  return {};
}

// Returns those of a rank, with a number, since it may read a weight in several parts.
std::vector<std::string> names_of(const Graph& graph) {
  std::vector<std::string> names;
  std::map<std::string, int> seen;
  for (const GraphArgument& each : graph.arguments) {
    const std::string name = name_of(each, graph.values[static_cast<size_t>(each.value)]);
    names.push_back(fmt::format("{} {}", name, seen[name]++));
  }
  return names;
}

// Extends `shape` to hold another one of the same name.
void extend(TensorShape& shape, const TensorShape& other, const std::string& name) {
  if (shape.dtype != other.dtype || shape.sizes.size() != other.sizes.size())
    throw Error(ErrorKind::kUsage, field("stablehlo"),
                fmt::format("ranks have '{}' in different forms", name));
  for (size_t i = 0; i < shape.sizes.size(); ++i) shape.sizes[i] = std::max(shape.sizes[i], other.sizes[i]);
}

// Renumbers the values of a graph as on all ranks: arguments first, then results in the order of the nodes.
class Renumbering {
 public:
  Renumbering(const Graph& graph, const SharedArguments& shared, size_t rank) : graph_(graph) {
    aligned_.prompt_of_sample = graph.prompt_of_sample;
    aligned_.numbers = graph.numbers;
    aligned_.arguments = shared.of_ranks[rank];
    aligned_.values = shared.shapes;
    for (size_t i = 0; i < aligned_.arguments.size(); ++i) {
      ValueId& value = aligned_.arguments[i].value;
      if (value != kNoValue) numbers_[value] = static_cast<ValueId>(i);
      value = static_cast<ValueId>(i);
    }
  }

  Graph aligned() {
    for (GraphNode node : graph_.nodes) {
      for (ValueId& each : node.reads) each = number(each);
      for (GraphAttribute& each : node.arguments) renumber(each);
      for (ValueId& each : node.writes) {
        aligned_.values.push_back(graph_.values[static_cast<size_t>(each)]);
        each = numbers_[each] = std::ssize(aligned_.values) - 1;
      }
      aligned_.nodes.push_back(std::move(node));
    }
    aligned_.results = graph_.results;
    for (GraphResult& each : aligned_.results) each.value = number(each.value);
    return std::move(aligned_);
  }

 private:
  ValueId number(ValueId value) const { return value == kNoValue ? kNoValue : numbers_.at(value); }
  void renumber(GraphAttribute& attribute) const {
    if (auto* one = std::get_if<ValueRef>(&attribute)) one->id = number(one->id);
    if (auto* several = std::get_if<std::vector<ValueRef>>(&attribute)) {
      for (ValueRef& each : *several) each.id = number(each.id);
    }
  }

  const Graph& graph_;
  Graph aligned_;
  std::map<ValueId, ValueId> numbers_;
};

// Gives a rank the operands that only others have; they are zero for this rank.
void share_operands(std::vector<Graph>& ranks) {
  for (size_t i = 0; i < ranks.front().nodes.size(); ++i) {
    for (size_t j = 0; j < ranks.front().nodes[i].reads.size(); ++j) {
      ValueId value = kNoValue;
      for (const Graph& each : ranks) value = std::max(value, each.nodes[i].reads.at(j));
      for (Graph& each : ranks) {
        ValueId& own = each.nodes[i].reads[j];
        const bool is_weight = value >= 0 && static_cast<size_t>(value) < each.arguments.size() &&
                               each.arguments[static_cast<size_t>(value)].is_zero;
        if (own == kNoValue && is_weight) own = value;
      }
    }
  }
}

// Whether the arguments of all ranks have the same shapes, and only weights are missing: without an input, a
// rank would compute something else.
bool have_one_shape(const SharedArguments& shared, std::span<const Graph> ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (size_t i = 0; i < shared.shapes.size(); ++i) {
      const GraphArgument& argument = shared.of_ranks[rank][i];
      if (argument.is_zero ? argument.kind != GraphArgument::Kind::kWeight
                           : ranks[rank].values[static_cast<size_t>(argument.value)] != shared.shapes[i])
        return false;
    }
  }
  return true;
}

// Whether both have results with the same names, and their nodes read the same number of values.
bool have_one_form(const Graph& a, const Graph& b) {
  const auto have_one_name = [](const GraphResult& x, const GraphResult& y) { return x.name == y.name; };
  if (!std::equal(a.results.begin(), a.results.end(), b.results.begin(), b.results.end(), have_one_name))
    return false;
  return std::equal(a.nodes.begin(), a.nodes.end(), b.nodes.begin(), b.nodes.end(),
                    [](const GraphNode& x, const GraphNode& y) {
                      return x.name == y.name && x.reads.size() == y.reads.size();
                    });
}

bool are_alike(const Graph& a, const Graph& b) {
  return a.values == b.values && std::equal(a.nodes.begin(), a.nodes.end(), b.nodes.begin(), b.nodes.end(),
                                            [](const GraphNode& x, const GraphNode& y) {
                                              return x.reads == y.reads && x.attributes == y.attributes &&
                                                     x.arguments == y.arguments;
                                            });
}

}  // namespace

std::vector<int64_t> partners_of(std::span<const Graph> world, int64_t rank) {
  std::set<int64_t> partners = {rank};
  for (std::vector<int64_t> fresh = {rank}; !fresh.empty();) {
    const Graph& graph = world[static_cast<size_t>(fresh.back())];
    fresh.pop_back();
    for (const GraphNode& node : graph.nodes) {
      for (const int64_t peer : node.collective.ranks) {
        if (partners.insert(peer).second) fresh.push_back(peer);
      }
    }
  }
  return {partners.begin(), partners.end()};
}

std::vector<Graph> graphs_of(std::span<const Graph> world, const std::vector<int64_t>& partners) {
  const auto renumber = [&](int64_t& rank) {
    if (rank >= 0) rank = std::lower_bound(partners.begin(), partners.end(), rank) - partners.begin();
  };
  std::vector<Graph> graphs;
  for (const int64_t rank : partners) {
    graphs.push_back(world[static_cast<size_t>(rank)]);
    for (GraphNode& node : graphs.back().nodes) {
      for (int64_t& each : node.collective.ranks) renumber(each);
      renumber(node.collective.to);
      renumber(node.collective.from);
    }
  }
  return graphs;
}

SharedArguments share_arguments(std::span<const Graph> ranks) {
  SharedArguments shared;
  std::map<std::string, size_t> places;
  std::vector<GraphArgument> all;  // each as the first rank that has it has it
  std::vector<std::vector<std::string>> names;
  for (const Graph& graph : ranks) {
    names.push_back(names_of(graph));
    for (size_t i = 0; i < graph.arguments.size(); ++i) {
      const GraphArgument& argument = graph.arguments[i];
      const TensorShape& shape = graph.values[static_cast<size_t>(argument.value)];
      const auto [place, is_new] = places.emplace(names.back()[i], all.size());
      if (is_new) {
        all.push_back(argument);
        shared.shapes.push_back(shape);
      } else {
        extend(shared.shapes[place->second], shape, argument.name + argument.key);
      }
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].value = kNoValue;
    all[i].is_zero = true;
    // Each rank numbers its caches by itself.
    if (all[i].kind == GraphArgument::Kind::kCache) all[i].name = fmt::format("padding.{}", i);
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    std::vector<GraphArgument>& own = shared.of_ranks.emplace_back(all);
    for (size_t i = 0; i < names[rank].size(); ++i) own[places.at(names[rank][i])] = ranks[rank].arguments[i];
  }
  return shared;
}

SharedResults share_results(std::span<const Graph> ranks) {
  SharedResults shared;
  std::map<std::string, size_t> places;
  std::vector<GraphResult> all;
  const auto type_of = [](const Graph& graph, const GraphResult& result) -> const TensorShape& {
    return graph.values[static_cast<size_t>(result.value)];
  };
  const auto key_of = [&](const Graph& graph, const GraphResult& result) {
    return fmt::format("{} {}", result.name, type_of(graph, result).sizes.size());
  };
  for (const Graph& graph : ranks) {
    for (const GraphResult& result : graph.results) {
      const auto [place, is_new] = places.emplace(key_of(graph, result), all.size());
      if (is_new) {
        all.push_back({.name = fmt::format("padding.{}", all.size())});
        shared.shapes.push_back(type_of(graph, result));
      } else {
        extend(shared.shapes[place->second], type_of(graph, result), result.name);
      }
    }
  }
  for (const Graph& graph : ranks) {
    std::vector<GraphResult>& own = shared.of_ranks.emplace_back(all);
    for (const GraphResult& result : graph.results) own[places.at(key_of(graph, result))] = result;
  }
  return shared;
}

std::optional<std::vector<Graph>> align_graphs(std::span<const Graph> ranks) {
  const SharedArguments shared = share_arguments(ranks);
  if (!have_one_shape(shared, ranks)) return std::nullopt;
  std::vector<Graph> aligned;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    aligned.push_back(Renumbering(ranks[rank], shared, rank).aligned());
    if (!have_one_form(aligned.front(), aligned.back())) return std::nullopt;
  }
  share_operands(aligned);
  for (const Graph& each : aligned) {
    if (!are_alike(aligned.front(), each)) return std::nullopt;
  }
  return aligned;
}

}  // namespace tessera::plan
