#include "plan/stablehlo_sharding.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "core/range.h"
#include "plan/shardable_graph.h"

namespace tessera::plan {
namespace {

using FileBox = std::vector<Range>;  // of a tensor in a file, by dimension

const std::vector<int64_t>& sizes_of(const Graph& graph, ValueId value) {
  return graph.values[static_cast<size_t>(value)].sizes;
}

int64_t parts_of(const MethodGraph& method) {
  int64_t parts = 1;
  for (const MeshAxis& axis : method.axes) parts *= axis.size;
  return parts;
}

[[noreturn]] void refuse(std::string_view what, const std::vector<int64_t>& part,
                         const std::vector<int64_t>& whole, int64_t parts) {
  usage_error(field("sharding"),
              "divides into equal parts only, and a rank has [{}] of {} [{}], which is no equal part of {}; "
              "choose other sizes or degrees, or leave it out for a program of each rank",
              fmt::join(part, ", "), what, fmt::join(whole, ", "), parts);
}

int64_t elements_of(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

// Whether each dimension is divided; nothing if the part has a different number of dimensions.
std::optional<std::vector<bool>> divided(std::string_view what, const std::vector<int64_t>& part,
                                         const std::vector<int64_t>& whole, const MethodGraph& method) {
  const int64_t parts = parts_of(method);
  if (part == whole) return std::vector<bool>(whole.size());
  if (elements_of(part) * parts != elements_of(whole)) refuse(what, part, whole, parts);
  std::vector<bool> is_divided(whole.size());
  if (part.size() != whole.size()) return std::nullopt;
  for (size_t i = 0; i < whole.size(); ++i) {
    is_divided[i] = part[i] != whole[i];
    if (is_divided[i] && (part[i] * parts != whole[i] || (method.divides_samples && i > 0)))
      return std::nullopt;
  }
  return is_divided;
}

// Adds how a method divides a value. Returns whether a sharding can express it.
bool add_axes(ValueSharding& sharding, std::string_view what, const std::vector<int64_t>& part,
              const std::vector<int64_t>& whole, const MethodGraph& method) {
  const std::optional<std::vector<bool>> is_divided = divided(what, part, whole, method);
  if (!is_divided) return false;
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const MeshAxis& axis : method.axes) {
      if ((*is_divided)[i]) sharding[i].push_back(axis.name);
    }
  }
  return true;
}

FileBox file_box_of(const GraphArgument& weight) {
  FileBox box;
  for (const int64_t size : weight.whole) box.push_back({0, size});
  for (const weights::Slice& slice : weight.slices)
    box[static_cast<size_t>(slice.dim)] = {slice.begin, slice.length};
  return box;
}

// Joins b to a if they are adjacent in exactly one dimension.
bool join(FileBox& a, const FileBox& b) {
  int64_t dim = -1;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    if (dim >= 0 || a[i].end() != b[i].begin) return false;
    dim = static_cast<int64_t>(i);
  }
  if (dim >= 0) a[static_cast<size_t>(dim)].length += b[static_cast<size_t>(dim)].length;
  return true;
}

// The part of a weight of the whole graph that a rank has: boxes in ascending order.
std::vector<FileBox> taken(const Graph& of_rank, const GraphArgument& weight) {
  const FileBox whole = file_box_of(weight);
  std::vector<FileBox> boxes;
  for (const GraphArgument& each : of_rank.arguments) {
    if (each.kind != GraphArgument::Kind::kWeight || each.part != weight.part || each.key != weight.key)
      continue;
    FileBox box = file_box_of(each);
    bool is_empty = false;
    for (size_t i = 0; i < box.size(); ++i) {
      box[i] = overlap(box[i], whole[i]);
      is_empty = is_empty || box[i].length == 0;
    }
    if (!is_empty) boxes.push_back(std::move(box));
  }
  std::ranges::sort(boxes, [](const FileBox& a, const FileBox& b) {
    return std::ranges::lexicographical_compare(a, b, {}, &Range::begin, &Range::begin);
  });
  std::vector<FileBox> joined;
  for (const FileBox& box : boxes) {
    if (joined.empty() || !join(joined.back(), box)) joined.push_back(box);
  }
  return joined;
}

// If several layers are in one tensor of the file, and a rank has a part of each, they become separate
// arguments.
class SeparateArguments {
 public:
  SeparateArguments(Graph graph, std::span<const MethodGraph> methods)
      : graph_(std::move(graph)), methods_(methods) {}

  Graph run() {
    std::vector<GraphArgument> arguments;
    for (const GraphArgument& each : graph_.arguments) {
      const std::vector<Range> rows =
          each.kind == GraphArgument::Kind::kWeight ? rows_of_layers(each) : std::vector<Range>();
      if (rows.size() < 2) {
        arguments.push_back(each);
      } else {
        separate(each, rows, arguments);
      }
    }
    graph_.arguments = std::move(arguments);
    graph_.nodes.insert(graph_.nodes.begin(), joins_.begin(), joins_.end());
    return std::move(graph_);
  }

 private:
  // The first rank has the beginning of each layer.
  std::vector<Range> rows_of_layers(const GraphArgument& weight) const {
    const Range all = file_box_of(weight).front();
    std::vector<int64_t> begins = {all.begin};
    for (const MethodGraph& method : methods_) {
      for (const FileBox& box : taken(method.graph, weight)) begins.push_back(box.front().begin);
    }
    std::ranges::sort(begins);
    begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
    std::vector<Range> rows;
    for (size_t i = 0; i < begins.size(); ++i) {
      const int64_t end = i + 1 < begins.size() ? begins[i + 1] : all.end();
      rows.push_back({begins[i], end - begins[i]});
    }
    return rows;
  }

  ValueId add_value(std::vector<int64_t> sizes, at::ScalarType dtype) {
    graph_.values.push_back({std::move(sizes), dtype});
    return std::ssize(graph_.values) - 1;
  }

  // A weight with another dtype is converted before anything else.
  GraphNode* conversion_of(const GraphArgument& weight) {
    const auto found = std::ranges::find_if(graph_.nodes, [&](const GraphNode& node) {
      return node.name == "convert" && node.reads.front() == weight.value;
    });
    return found == graph_.nodes.end() ? nullptr : &*found;
  }

  void separate(const GraphArgument& weight, const std::vector<Range>& rows,
                std::vector<GraphArgument>& arguments) {
    GraphNode* const conversion = conversion_of(weight);
    GraphNode join{.name = "aten::concat",
                   .writes = {conversion == nullptr ? weight.value : conversion->writes.front()}};
    const TensorShape stored = graph_.values[static_cast<size_t>(weight.value)],
                      used = graph_.values[static_cast<size_t>(join.writes.front())];
    std::vector<ValueRef> parts;
    for (const Range& range : rows) {
      GraphArgument part = weight;
      std::vector<int64_t> sizes = stored.sizes;
      sizes.front() = range.length;
      part.value = add_value(sizes, stored.dtype);
      std::erase_if(part.slices, [](const weights::Slice& slice) { return slice.dim == 0; });
      part.slices.push_back({0, range.begin, range.length});
      arguments.push_back(part);
      parts.push_back({part.value});
      if (conversion == nullptr) continue;
      parts.back() = {add_value(sizes, used.dtype)};
      joins_.push_back({.name = "convert", .reads = {part.value}, .writes = {parts.back().id}});
    }
    for (const ValueRef& part : parts) join.reads.push_back(part.id);
    join.arguments = {parts, int64_t{0}};
    joins_.push_back(std::move(join));
    if (conversion != nullptr) graph_.nodes.erase(graph_.nodes.begin() + (conversion - graph_.nodes.data()));
  }

  Graph graph_;
  std::span<const MethodGraph> methods_;
  std::vector<GraphNode> joins_;
};

// The kind of an input by its name, the same for several prompts.
std::string kind_of_input(const GraphArgument& input) {
  return input.name.substr(0, input.name.find('.'));
}

// The inputs of a graph of one kind.
std::vector<const GraphArgument*> inputs_of(const Graph& graph, const std::string& kind) {
  std::vector<const GraphArgument*> inputs;
  for (const GraphArgument& each : graph.arguments) {
    if (each.kind == GraphArgument::Kind::kInput && kind_of_input(each) == kind) inputs.push_back(&each);
  }
  return inputs;
}

ValueSharding sharding_of_input(const Graph& whole, const GraphArgument& input,
                                std::span<const MethodGraph> methods) {
  const std::vector<int64_t>& sizes = sizes_of(whole, input.value);
  const std::vector<const GraphArgument*> alike = inputs_of(whole, kind_of_input(input));
  const auto number = std::ranges::find(alike, &input) - alike.begin();
  ValueSharding sharding(sizes.size());
  for (const MethodGraph& method : methods) {
    const std::vector<const GraphArgument*> found = inputs_of(method.graph, kind_of_input(input));
    if (found.size() != alike.size()) continue;  // the rank has only some of the prompts
    const std::vector<int64_t>& part = sizes_of(method.graph, found[static_cast<size_t>(number)]->value);
    if (!add_axes(sharding, input.name, part, sizes, method))
      refuse(input.name, part, sizes, parts_of(method));
  }
  return sharding;
}

ValueSharding sharding_of_weight(const GraphArgument& weight, std::span<const MethodGraph> methods) {
  const auto lengths = [](const FileBox& box) {
    std::vector<int64_t> sizes;
    for (const Range& range : box) sizes.push_back(range.length);
    return sizes;
  };
  const FileBox whole = file_box_of(weight);
  ValueSharding sharding(whole.size());
  for (const MethodGraph& method : methods) {
    const std::vector<FileBox> boxes = taken(method.graph, weight);
    if (boxes.empty()) continue;
    const std::vector<int64_t> part = lengths(boxes.front()), all = lengths(whole);
    if (!add_axes(sharding, weight.key, part, all, method)) refuse(weight.key, part, all, parts_of(method));
  }
  return sharding;
}

// Nodes that decide how values are divided; the others follow.
bool is_constrained(const GraphNode& node) {
  return node.name == "linear" || node.name.ends_with("attention") || node.name == "attention_to_prompts";
}

// The number of a node's operands that are activations of the samples.
size_t activations_of(const GraphNode& node) {
  return node.name == "linear" || node.name == "attention_to_prompts" ? 1 : 3;
}

// The constrained nodes of a graph, grouped by what they are, in order.
class Places {
 public:
  using Key = std::tuple<std::string, std::string, int64_t>;  // name, role and block

  explicit Places(const Graph& graph) {
    for (const GraphNode& node : graph.nodes) {
      if (is_constrained(node)) nodes_[key_of(node)].push_back(&node);
    }
  }
  // A rank may have one of the prompts.
  static Key key_of(const GraphNode& node) {
    return {node.name == "attention_to_prompts" ? "attention" : node.name, node.role, node.block};
  }
  const std::vector<const GraphNode*>& at(const Key& key) const {
    static const std::vector<const GraphNode*> none;
    const auto found = nodes_.find(key);
    return found == nodes_.end() ? none : found->second;
  }

 private:
  std::map<Key, std::vector<const GraphNode*>> nodes_;
};

// The same node in the graph of a rank; nothing if that graph has another number of such nodes.
const GraphNode* same_node(const Places& whole, const Places& of_rank, const GraphNode& node) {
  const Places::Key key = Places::key_of(node);
  const auto &own = whole.at(key), &others = of_rank.at(key);
  if (own.size() != others.size()) return nullptr;
  return others[static_cast<size_t>(std::ranges::find(own, &node) - own.begin())];
}

// The values of a rank before and after exchanges with other ranks.
class Exchanges {
 public:
  explicit Exchanges(const Graph& graph) : graph_(graph) {
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      for (const ValueId value : graph.nodes[i].writes) writers_[value] = i;
    }
  }

  // What becomes of a rank's result in an exchange: the sum, for a part of a sum.
  ValueId sum_of(ValueId value) const {
    for (const GraphNode& node : graph_.nodes) {
      const bool is_sum = node.name == "collective.all_reduce" || node.name == "collective.reduce_scatter";
      if (is_sum && node.reads.front() == value) return node.writes.front();
    }
    return value;
  }

  // The operand of a rank before Ulysses changed it from tokens to heads.
  ValueId before(ValueId value) const {
    const GraphNode* const writer = writer_of(value);
    if (writer == nullptr) return value;
    if (writer->name == "view") {
      const ValueId part = last_written(writer->reads.front(), writer->part);
      return part == kNoValue || before(part) == part ? value : before(part);
    }
    if (writer->name != "collective.tokens_to_heads") return value;
    return writer
        ->reads[static_cast<size_t>(std::ranges::find(writer->writes, value) - writer->writes.begin())];
  }

 private:
  const GraphNode* writer_of(ValueId value) const {
    const auto found = writers_.find(value);
    return found == writers_.end() ? nullptr : &graph_.nodes[found->second];
  }

  // The value last written to this part of a memory.
  ValueId last_written(ValueId memory, const Geometry& part) const {
    for (const GraphNode* node = writer_of(memory); node != nullptr && node->name == "write";
         node = writer_of(node->reads.front())) {
      if (node->part == part) return node->reads[1];
    }
    return kNoValue;
  }

  const Graph& graph_;
  std::map<ValueId, size_t> writers_;
};

// The sharding of an operand or result; nothing if a rank has it with a different number of dimensions.
std::optional<ValueSharding> sharding_of_value(const Graph& whole, ValueId value, std::string_view what,
                                               std::span<const MethodGraph> methods,
                                               const std::vector<ValueId>& of_ranks) {
  const std::vector<int64_t>& sizes = sizes_of(whole, value);
  ValueSharding sharding(sizes.size());
  for (size_t i = 0; i < methods.size(); ++i) {
    const std::vector<int64_t>& part = sizes_of(methods[i].graph, of_ranks[i]);
    if (!add_axes(sharding, what, part, sizes, methods[i])) return std::nullopt;
  }
  return sharding;
}

// How the operands and results of a node are divided.
class Constraints {
 public:
  Constraints(const Graph& whole, std::span<const MethodGraph> methods)
      : whole_(whole), methods_(methods), places_(whole) {
    for (const MethodGraph& method : methods) {
      of_ranks_.emplace_back(method.graph);
      exchanges_.emplace_back(method.graph);
    }
  }

  NodeSharding of(const GraphNode& node) const {
    if (!is_constrained(node)) return {};
    std::vector<const GraphNode*> same;
    for (const Places& each : of_ranks_) same.push_back(same_node(places_, each, node));
    if (std::ranges::find(same, nullptr) != same.end()) return {};
    NodeSharding sharding;
    for (size_t i = 0; i < activations_of(node); ++i) {
      std::vector<ValueId> before, after;
      for (size_t j = 0; j < same.size(); ++j) {
        after.push_back(same[j]->reads[i]);
        before.push_back(exchanges_[j].before(after.back()));
      }
      sharding.reads.push_back(constraints(node, node.reads[i], {before, after}));
    }
    for (size_t i = 0; i < node.writes.size(); ++i) {
      std::vector<ValueId> sums;
      for (size_t j = 0; j < same.size(); ++j) sums.push_back(exchanges_[j].sum_of(same[j]->writes[i]));
      sharding.writes.push_back(constraints(node, node.writes[i], {sums}));
      for (size_t j = 0; j < same.size(); ++j) {
        if (methods_[j].divides_sums && sums[j] != same[j]->writes[i])
          divide_tokens(sharding.writes.back(), node, node.writes[i], methods_[j]);
      }
    }
    return sharding;
  }

 private:
  // `of_ranks` are the values that the rank of each method has, one after the other.
  std::vector<ValueSharding> constraints(const GraphNode& node, ValueId value,
                                         const std::vector<std::vector<ValueId>>& of_ranks) const {
    std::vector<ValueSharding> all;
    for (const std::vector<ValueId>& each : of_ranks) {
      const auto sharding =
          sharding_of_value(whole_, value, node.role.empty() ? node.name : node.role, methods_, each);
      if (sharding && (all.empty() || all.back() != *sharding)) all.push_back(*sharding);
    }
    return all;
  }

  // For [.., tokens, channels].
  void divide_tokens(std::vector<ValueSharding>& constraints, const GraphNode& node, ValueId value,
                     const MethodGraph& method) const {
    const std::vector<int64_t>& sizes = sizes_of(whole_, value);
    for (ValueSharding& sharding : constraints) {
      std::vector<std::string>& axes = sharding.at(sharding.size() - 2);
      for (const MeshAxis& axis : method.axes) axes.push_back(axis.name);
      std::vector<int64_t> part = sizes;
      int64_t& tokens = part[part.size() - 2];
      const int64_t parts = parts_of_axes(axes);
      tokens = (tokens + parts - 1) / parts;
      if (tokens * parts != sizes[sizes.size() - 2]) refuse(node.role, part, sizes, parts);
    }
  }

  int64_t parts_of_axes(const std::vector<std::string>& axes) const {
    int64_t parts = 1;
    for (const MethodGraph& method : methods_) {
      for (const MeshAxis& axis : method.axes) {
        if (std::ranges::find(axes, axis.name) != axes.end()) parts *= axis.size;
      }
    }
    return parts;
  }

  const Graph& whole_;
  std::span<const MethodGraph> methods_;
  const Places places_;
  std::vector<Places> of_ranks_;
  std::vector<Exchanges> exchanges_;
};

}  // namespace

ShardedGraph shard_graph(Graph whole, std::span<const MethodGraph> given, std::vector<MeshAxis> mesh) {
  ShardedGraph sharded{.graph = shardable_graph(SeparateArguments(std::move(whole), given).run()),
                       .sharding = {}};
  sharded.sharding.mesh = std::move(mesh);
  std::vector<MethodGraph> methods(given.begin(), given.end());
  for (MethodGraph& method : methods) method.graph = shardable_graph(std::move(method.graph));
  const Graph& graph = sharded.graph;
  for (const GraphArgument& each : graph.arguments) {
    sharded.sharding.arguments.push_back(
        each.kind == GraphArgument::Kind::kWeight  ? sharding_of_weight(each, methods)
        : each.kind == GraphArgument::Kind::kInput ? sharding_of_input(graph, each, methods)
                                                   : ValueSharding(sizes_of(graph, each.value).size()));
  }
  for (size_t i = 0; i < graph.results.size(); ++i) {
    std::vector<ValueId> of_ranks;
    for (const MethodGraph& method : methods) {
      of_ranks.push_back(method.graph.results.at(i).value);
      if (method.divides_samples &&
          sizes_of(method.graph, of_ranks.back()) == sizes_of(graph, graph.results[i].value))
        usage_error(
            field("sharding"),
            "finds no pictures to divide: one rank denoises the pictures one after the other; ask for "
            "smaller ones");
    }
    const auto sharding =
        sharding_of_value(graph, graph.results[i].value, graph.results[i].name, methods, of_ranks);
    TESSERA_CHECK(sharding, "ranks have {} in another shape", graph.results[i].name);
    sharded.sharding.results.push_back(*sharding);
  }
  const Constraints constraints(graph, methods);
  for (const GraphNode& node : graph.nodes) sharded.sharding.nodes.push_back(constraints.of(node));
  return sharded;
}

std::string sdy_sharding(const ValueSharding& sharding) {
  std::vector<std::string> dims;
  for (const std::vector<std::string>& axes : sharding) {
    std::vector<std::string> quoted;
    for (const std::string& axis : axes) quoted.push_back(fmt::format("\"{}\"", axis));
    dims.push_back(fmt::format("{{{}}}", fmt::join(quoted, ", ")));
  }
  return fmt::format("<@mesh, [{}]>", fmt::join(dims, ", "));
}

std::string sdy_mesh(const std::vector<MeshAxis>& mesh) {
  std::vector<std::string> axes;
  for (const MeshAxis& axis : mesh) axes.push_back(fmt::format("\"{}\"={}", axis.name, axis.size));
  return fmt::format("sdy.mesh @mesh = <[{}]>", fmt::join(axes, ", "));
}

}  // namespace tessera::plan
