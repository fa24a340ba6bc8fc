#include "plan/align_graphs.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include "core/error.h"

namespace tessera::plan {
namespace {

[[noreturn]] void refuse(std::string_view why) {
  throw Error(
      ErrorKind::kUsage, "stablehlo",
      fmt::format("the ranks work together on parts that differ ({}), for which there is no program yet",
                  why));
}

// What an argument is called among those of its rank: a weight may be read in several parts.
std::vector<std::string> names_of(const Graph& graph) {
  std::vector<std::string> names;
  std::map<std::string, int> seen;
  for (const GraphArgument& each : graph.arguments) {
    const std::string name = fmt::format("{} {} {} {}", static_cast<int>(each.kind), each.part, each.key,
                                         each.kind == GraphArgument::Kind::kInput ? each.name : "");
    names.push_back(fmt::format("{} {}", name, seen[name]++));
  }
  return names;
}

// The arguments of all ranks, each once, in the order in which a rank first has it.
struct Arguments {
  std::vector<std::string> names;
  std::vector<GraphArgument> all;
  std::vector<TensorShape> shapes;
};

Arguments arguments_of(std::span<const Graph> ranks) {
  Arguments arguments;
  for (const Graph& graph : ranks) {
    const std::vector<std::string> names = names_of(graph);
    for (size_t i = 0; i < names.size(); ++i) {
      const TensorShape& shape = graph.values[static_cast<size_t>(graph.arguments[i].value)];
      const auto found = std::find(arguments.names.begin(), arguments.names.end(), names[i]);
      if (found == arguments.names.end()) {
        arguments.names.push_back(names[i]);
        arguments.all.push_back(graph.arguments[i]);
        arguments.shapes.push_back(shape);
      } else if (arguments.shapes[static_cast<size_t>(found - arguments.names.begin())] != shape) {
        refuse(graph.arguments[i].name + graph.arguments[i].key);
      }
    }
  }
  return arguments;
}

// Gives the values of a graph the numbers that they have on all ranks: arguments, then results in the order
// of the nodes.
class Renumbering {
 public:
  Renumbering(const Graph& graph, const Arguments& arguments) : graph_(graph) {
    aligned_.prompt_of_sample = graph.prompt_of_sample;
    aligned_.numbers = graph.numbers;
    const std::vector<std::string> own = names_of(graph);
    for (size_t i = 0; i < arguments.names.size(); ++i) {
      const auto found = std::find(own.begin(), own.end(), arguments.names[i]);
      GraphArgument argument = arguments.all[i];
      if (found != own.end()) {
        argument = graph.arguments[static_cast<size_t>(found - own.begin())];
        numbers_[argument.value] = static_cast<ValueId>(i);
      } else if (argument.kind == GraphArgument::Kind::kWeight) {
        argument.is_zero = true;
      } else {
        refuse("in their inputs");
      }
      argument.value = static_cast<ValueId>(i);
      aligned_.arguments.push_back(std::move(argument));
      aligned_.values.push_back(arguments.shapes[i]);
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
    for (const GraphResult& each : graph_.results)
      aligned_.results.push_back({each.name, number(each.value)});
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

// What a rank does without is what another has, which is zero for the rank.
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

void require_alike(const Graph& a, const Graph& b) {
  for (size_t i = 0; i < a.nodes.size(); ++i) {
    const GraphNode &x = a.nodes[i], &y = b.nodes[i];
    if (x.reads != y.reads || x.attributes != y.attributes || x.arguments != y.arguments) refuse(x.name);
  }
  if (a.values != b.values) refuse("in their shapes");
}

}  // namespace

std::vector<Graph> align_graphs(std::span<const Graph> ranks) {
  const Arguments arguments = arguments_of(ranks);
  std::vector<Graph> aligned;
  for (const Graph& each : ranks) aligned.push_back(Renumbering(each, arguments).aligned());
  for (const Graph& each : aligned) {
    if (each.nodes.size() != aligned.front().nodes.size()) refuse("in what they compute");
    for (size_t i = 0; i < each.nodes.size(); ++i) {
      const GraphNode &a = aligned.front().nodes[i], &b = each.nodes[i];
      if (a.name != b.name || a.reads.size() != b.reads.size()) refuse(a.name);
    }
  }
  share_operands(aligned);
  for (const Graph& each : aligned) require_alike(aligned.front(), each);
  return aligned;
}

}  // namespace tessera::plan
