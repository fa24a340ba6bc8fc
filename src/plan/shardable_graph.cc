#include "plan/shardable_graph.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/range.h"

namespace tessera::plan {
namespace {

// The nodes that write and read each value.
class Uses {
 public:
  explicit Uses(const Graph& graph) : graph_(graph), readers_(graph.values.size()) {
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      for (const ValueId value : graph.nodes[i].writes) writer_[value] = i;
      for (const ValueId value : graph.nodes[i].reads) {
        if (value != kNoValue) readers_[static_cast<size_t>(value)].push_back(i);
      }
    }
    for (const GraphResult& result : graph.results) is_result_[result.value] = true;
  }

  // The node with this name that writes a value, if there is one.
  const GraphNode* made_by(std::string_view name, ValueId value) const {
    const auto found = writer_.find(value);
    if (found == writer_.end() || graph_.nodes[found->second].name != name) return nullptr;
    return &graph_.nodes[found->second];
  }
  const std::vector<size_t>& readers(ValueId value) const { return readers_[static_cast<size_t>(value)]; }
  // Whether only views read the value.
  bool is_only_viewed(ValueId value) const {
    return !is_result_.contains(value) && std::ranges::all_of(readers(value), [&](size_t node) {
      return graph_.nodes[node].name == "view";
    });
  }

 private:
  const Graph& graph_;
  std::map<ValueId, size_t> writer_;
  std::map<ValueId, bool> is_result_;
  std::vector<std::vector<size_t>> readers_;
};

Geometry dense(const std::vector<int64_t>& sizes) {
  Geometry geometry{.sizes = sizes, .strides = std::vector<int64_t>(sizes.size())};
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0; stride *= sizes[i]) geometry.strides[i] = sizes[i] == 1 ? 0 : stride;
  return geometry;
}

ValueId add_value(Graph& graph, std::vector<int64_t> sizes, at::ScalarType dtype) {
  graph.values.push_back({std::move(sizes), dtype});
  return std::ssize(graph.values) - 1;
}

const TensorShape& type_of(const Graph& graph, ValueId value) {
  return graph.values[static_cast<size_t>(value)];
}

// A view of rows of `width` elements that covers some of their columns, as a view of rows that consist of
// only these.
std::optional<Geometry> within_columns(const Geometry& view, int64_t width, const Range& columns) {
  const int64_t first = view.offset % width;
  int64_t last = first;
  Geometry within{.offset = view.offset / width * columns.length + first - columns.begin,
                  .sizes = view.sizes,
                  .strides = view.strides};
  for (size_t i = 0; i < view.sizes.size(); ++i) {
    const int64_t stride = view.strides[i];
    if (stride % width == 0) {
      within.strides[i] = stride / width * columns.length;
    } else {
      last += (view.sizes[i] - 1) * stride;
    }
  }
  if (first < columns.begin || last >= columns.end()) return std::nullopt;
  return within;
}

// Products of several layers with the same input, whose weights were joined before.
class SeparateLayers {
 public:
  explicit SeparateLayers(const Graph& graph) : uses_(graph), graph_(graph) {}

  Graph run() {
    std::vector<GraphNode> nodes;
    for (GraphNode node : graph_.nodes) {
      if (node.name == "linear" && separate(node, nodes)) continue;
      if (node.name == "view") move_to_layer(node);
      nodes.push_back(std::move(node));
    }
    graph_.nodes = std::move(nodes);
    return std::move(graph_);
  }

 private:
  struct Layer {
    Range columns;  // of the joined result
    ValueId result;
  };

  // The values that were joined along their first dimension into a weight or bias; none if it was not joined.
  std::vector<ValueId> joined(ValueId value) const {
    for (const char* name : {"aten::concat", "aten::cat"}) {
      const GraphNode* const node = uses_.made_by(name, value);
      if (node == nullptr || node->arguments.size() < 2 || node->arguments[1] != GraphAttribute(int64_t{0}))
        continue;
      return node->reads;
    }
    return {};
  }

  const Layer* layer_of(const GraphNode& view, const std::vector<Layer>& layers, int64_t width) const {
    for (const Layer& layer : layers) {
      if (within_columns(view.part, width, layer.columns)) return &layer;
    }
    return nullptr;
  }

  bool separate(const GraphNode& node, std::vector<GraphNode>& nodes) {
    const std::vector<ValueId> weights = joined(node.reads[1]);
    const bool has_bias = node.reads.size() > 2 && node.reads[2] != kNoValue;
    const std::vector<ValueId> biases = has_bias ? joined(node.reads[2]) : std::vector<ValueId>();
    const ValueId result = node.writes.front();
    if (weights.size() < 2 || (has_bias && biases.size() != weights.size()) || !uses_.is_only_viewed(result))
      return false;
    const TensorShape type = type_of(graph_, result);
    std::vector<Layer> layers;
    for (int64_t begin = 0; const ValueId weight : weights) {
      layers.push_back({{begin, type_of(graph_, weight).sizes.front()}, kNoValue});
      begin = layers.back().columns.end();
    }
    for (const size_t reader : uses_.readers(result)) {
      if (layer_of(graph_.nodes[reader], layers, type.sizes.back()) == nullptr) return false;
    }
    for (size_t i = 0; i < layers.size(); ++i) {
      GraphNode part = node;
      std::vector<int64_t> sizes = type.sizes;
      sizes.back() = layers[i].columns.length;
      layers[i].result = add_value(graph_, sizes, type.dtype);
      part.reads[1] = weights[i];
      if (has_bias) part.reads[2] = biases[i];
      part.writes = {layers[i].result};
      nodes.push_back(std::move(part));
    }
    layers_[result] = std::move(layers);
    return true;
  }

  void move_to_layer(GraphNode& view) const {
    const auto found = layers_.find(view.reads.front());
    if (found == layers_.end()) return;
    const int64_t width = view.whole.sizes.back();
    const Layer& layer = *layer_of(view, found->second, width);
    view.part = *within_columns(view.part, width, layer.columns);
    view.reads = {layer.result};
    view.whole = dense(type_of(graph_, layer.result).sizes);
  }

  const Uses uses_;
  Graph graph_;
  std::map<ValueId, std::vector<Layer>> layers_;  // by the joined result
};

// Attention of samples to their own prompts, whose results were written one after the other.
class JointPrompts {
 public:
  explicit JointPrompts(const Graph& graph) : uses_(graph), graph_(graph) {}

  Graph run() {
    std::vector<GraphNode> nodes;
    for (const GraphNode& node : graph_.nodes) {
      begin_or_continue(node);
      nodes.push_back(node);
    }
    std::vector<GraphNode> kept;
    for (GraphNode& node : nodes) {
      const ValueId result = node.writes.empty() ? kNoValue : node.writes.front();
      if (const auto found = complete_.find(result); found != complete_.end()) {
        kept.push_back(joint(found->second));
        joint_[result] = kept.back().writes.front();
        continue;
      }
      if (is_replaced_.contains(result)) continue;
      if (node.name == "view" && joint_.contains(node.reads.front())) {
        node.reads = {joint_.at(node.reads.front())};
        node.whole = dense(type_of(graph_, node.reads.front()).sizes);
      }
      kept.push_back(std::move(node));
    }
    graph_.nodes = std::move(kept);
    return std::move(graph_);
  }

 private:
  // Attention of the first samples of the queries.
  struct Run {
    ValueId queries = kNoValue;             // [B, S, C]
    std::vector<const GraphNode*> of = {};  // one for each prompt
    std::vector<int64_t> samples = {};      // of each
    std::vector<ValueId> written = {};      // their results, and the memory that they were written to
  };

  // How many samples the attention covers, if these follow the first `done` samples of some queries.
  std::optional<int64_t> samples_of(const GraphNode& attention, const Run& run) const {
    const GraphNode* const view = uses_.made_by("view", attention.reads.front());
    if (view == nullptr) return std::nullopt;
    const ValueId queries = view->reads.front();
    const std::vector<int64_t>& sizes = type_of(graph_, queries).sizes;
    if (sizes.size() != 3 || sizes.front() == 1 || view->whole != dense(sizes)) return std::nullopt;
    if (run.queries != kNoValue && run.queries != queries) return std::nullopt;
    int64_t done = 0;
    for (const int64_t count : run.samples) done += count;
    const int64_t count = view->part.sizes.at(1) / sizes[1];
    const std::vector<int64_t> expected = {1, count * sizes[1], sizes[2]};
    Geometry part = dense(expected);
    part.offset = done * sizes[1] * sizes[2];
    if (count < 1 || view->part != part) return std::nullopt;
    return count;
  }

  // `written` is the memory's content after it.
  void add(const GraphNode& attention, ValueId written, Run run) {
    const std::optional<int64_t> count = samples_of(attention, run);
    if (!count) return;
    run.queries = uses_.made_by("view", attention.reads.front())->reads.front();
    run.of.push_back(&attention);
    run.samples.push_back(*count);
    run.written.push_back(attention.writes.front());
    int64_t done = 0;
    for (const int64_t each : run.samples) done += each;
    if (done < type_of(graph_, run.queries).sizes.front()) {
      run.written.push_back(written);
      runs_[written] = std::move(run);
    } else if (uses_.is_only_viewed(written)) {
      is_replaced_.insert(run.written.begin(), run.written.end());
      complete_[written] = std::move(run);
    }
  }

  void begin_or_continue(const GraphNode& node) {
    if (node.name == "empty") {
      runs_[node.writes.front()] = {.written = {node.writes.front()}};
    } else if (node.name == "write") {
      const GraphNode* const attention = uses_.made_by("attention", node.reads.at(1));
      const auto found = runs_.find(node.reads.front());
      if (attention != nullptr && found != runs_.end()) add(*attention, node.writes.front(), found->second);
    } else if (node.name == "attention") {
      // All samples may have the same prompt; then nothing is written part by part.
      add(node, node.writes.front(), {});
    }
  }

  GraphNode joint(const Run& run) {
    GraphNode node = *run.of.front();
    node.name = "attention_to_prompts";
    node.reads = {run.queries};
    for (const GraphNode* each : run.of)
      node.reads.insert(node.reads.end(), {each->reads[1], each->reads[2]});
    node.attributes.emplace_back("samples", run.samples);
    const TensorShape type = type_of(graph_, run.queries);
    node.writes = {add_value(graph_, type.sizes, type.dtype)};
    return node;
  }

  const Uses uses_;
  Graph graph_;
  std::map<ValueId, Run> runs_;      // by what was written last
  std::map<ValueId, Run> complete_;  // the same, covering all samples
  std::set<ValueId> is_replaced_;
  std::map<ValueId, ValueId> joint_;  // results, by what stood for them
};

}  // namespace

Graph shardable_graph(Graph graph) {
  return JointPrompts(SeparateLayers(graph).run()).run();
}

}  // namespace tessera::plan
