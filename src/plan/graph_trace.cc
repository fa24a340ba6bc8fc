#include "plan/graph_trace.h"

#include <algorithm>
#include <map>
#include <utility>

#include "plan/graph_roles.h"
#include "plan/views.h"

namespace tessera::plan {
namespace {

constexpr int64_t kNoNode = -1;

// The name of an operation or a collective in a graph; "" for a wait.
std::string node_name(const Event& event) {
  if (const auto* operation = std::get_if<OperationEvent>(&event.what)) return operation->name;
  if (const auto* collective = std::get_if<CollectiveEvent>(&event.what))
    return "collective." + collective->name;
  return "";
}

// The node of each event: the next node of the same name with the same origin. If several operations of a
// trace are a single one in the graph, such as a collective of two exchanges, the last of them has the node.
std::vector<int64_t> nodes_of(const std::vector<Event>& events, const std::vector<Origin>& origins,
                              const Graph& graph, const std::vector<Origin>& node_origins) {
  std::map<Origin, std::vector<int64_t>> recorded;
  for (size_t i = 0; i < node_origins.size(); ++i) {
    if (node_origins[i] != Origin()) recorded[node_origins[i]].push_back(static_cast<int64_t>(i));
  }
  std::vector<int64_t> nodes(events.size(), kNoNode);
  std::map<std::pair<Origin, std::string>, size_t> next;
  for (size_t i = 0; i < events.size(); ++i) {
    const auto found = recorded.find(origins[i]);
    if (found == recorded.end()) continue;
    const std::vector<int64_t>& all = found->second;
    const std::string name = node_name(events[i]);
    size_t& begin = next[{origins[i], name}];
    const auto same = std::find_if(all.begin() + static_cast<int64_t>(begin), all.end(), [&](int64_t node) {
      return graph.nodes[static_cast<size_t>(node)].name == name;
    });
    nodes[i] = same == all.end() ? all.back() : *same;
    begin = same == all.end() ? all.size() : static_cast<size_t>(same - all.begin()) + 1;
  }
  return nodes;
}

// Takes a part of a graph and renumbers it.
class GraphPart {
 public:
  // `held` is whether each node may be in the part, and `is_event` whether it is an event, which is
  // then in the part; other nodes are included if they are needed.
  GraphPart(Graph all, const std::vector<bool>& held, const std::vector<bool>& is_event)
      : all_(std::move(all)),
        writer_(all_.values.size(), kNoNode),
        is_kept_(all_.nodes.size()),
        leaves_(all_.values.size()) {
    keep(held, is_event);
  }

  Graph take() {
    add_arguments();
    for (size_t i = 0; i < all_.nodes.size(); ++i) {
      if (is_kept_[i]) add(std::move(all_.nodes[i]));
    }
    add_results();
    return std::move(part_);
  }
  // The numbers of nodes in the part; kNoNode for others.
  const std::vector<int64_t>& numbers() const { return numbers_; }

 private:
  static size_t index(ValueId value) { return static_cast<size_t>(value); }

  void keep(const std::vector<bool>& held, const std::vector<bool>& is_event) {
    std::vector<bool> is_needed(all_.values.size());
    for (size_t i = all_.nodes.size(); i-- > 0;) {
      const GraphNode& node = all_.nodes[i];
      const auto needed = [&](ValueId value) { return is_needed[index(value)] || leaves_[index(value)]; };
      for (const ValueId value : node.writes) writer_[index(value)] = static_cast<int64_t>(i);
      is_kept_[i] = held[i] && (is_event[i] || std::any_of(node.writes.begin(), node.writes.end(), needed));
      for (const ValueId value : node.reads) {
        if (value == kNoValue) continue;
        // Values that nodes outside the part read later are what the part leaves.
        if (is_kept_[i]) is_needed[index(value)] = true;
        if (!held[i]) leaves_[index(value)] = true;
      }
    }
    int64_t count = 0;
    for (const bool is_kept : is_kept_) numbers_.push_back(is_kept ? count++ : kNoNode);
  }

  ValueId add_value(ValueId of_all) {
    part_.values.push_back(all_.values[index(of_all)]);
    return new_id_[of_all] = std::ssize(part_.values) - 1;
  }

  // The values that are read: weights, inputs and constants, followed by what earlier nodes outside the part
  // have left.
  void add_arguments() {
    std::vector<ValueId> caches;
    std::vector<bool> is_read(all_.values.size());
    for (size_t i = 0; i < all_.nodes.size(); ++i) {
      for (const ValueId value : all_.nodes[i].reads) {
        if (!is_kept_[i] || value == kNoValue || is_read[index(value)]) continue;
        is_read[index(value)] = true;
        const int64_t writer = writer_[index(value)];
        if (writer != kNoNode && !is_kept_[static_cast<size_t>(writer)]) caches.push_back(value);
      }
    }
    for (GraphArgument& argument : all_.arguments) {
      if (!is_read[index(argument.value)]) continue;
      argument.value = add_value(argument.value);
      part_.arguments.push_back(std::move(argument));
    }
    for (size_t i = 0; i < caches.size(); ++i) {
      part_.arguments.push_back({.kind = GraphArgument::Kind::kCache,
                                 .value = add_value(caches[i]),
                                 .name = fmt::format("cache.{}", i)});
    }
  }

  void add(GraphNode node) {
    for (ValueId& value : node.reads) value = value == kNoValue ? kNoValue : new_id_.at(value);
    for (GraphAttribute& argument : node.arguments) {
      if (auto* one = std::get_if<ValueRef>(&argument); one != nullptr && one->id != kNoValue)
        one->id = new_id_.at(one->id);
      if (auto* several = std::get_if<std::vector<ValueRef>>(&argument)) {
        for (ValueRef& each : *several) each.id = each.id == kNoValue ? kNoValue : new_id_.at(each.id);
      }
    }
    for (ValueId& value : node.writes) value = add_value(value);
    part_.nodes.push_back(std::move(node));
  }

  void add_results() {
    std::vector<bool> is_result(part_.values.size(), true);
    for (const GraphNode& node : part_.nodes) {
      for (const ValueId value : node.reads) {
        if (value != kNoValue) is_result[index(value)] = false;
      }
    }
    for (const auto& [of_all, value] : new_id_) {
      if (leaves_[index(of_all)]) is_result[index(value)] = true;
    }
    for (const GraphArgument& argument : part_.arguments) is_result[index(argument.value)] = false;
    for (size_t i = 0; i < is_result.size(); ++i) {
      if (is_result[i])
        part_.results.push_back(
            {.name = fmt::format("result.{}", part_.results.size()), .value = static_cast<ValueId>(i)});
    }
  }

  Graph all_, part_;
  std::vector<int64_t> writer_;  // by value: the node that writes it
  std::vector<bool> is_kept_;    // by node
  std::vector<bool> leaves_;     // by value: whether a node outside the part reads it
  std::vector<int64_t> numbers_;
  std::map<ValueId, ValueId> new_id_;
};

}  // namespace

GraphTracer::GraphTracer(const Recorder& recorder, GraphRecorder& graph, std::string folder)
    : recorder_(recorder), graph_(graph), folder_(std::move(folder)) {
  mark();
}

void GraphTracer::mark() {
  marks_.push_back({graph_.size(), recorder_.phase(), recorder_.step(), recorder_.is_loading()});
}

void GraphTracer::follow(engine::Observer& observer) {
  observer.started = [this, started = observer.started](engine::Phase phase) {
    if (started) started(phase);
    if (phase == engine::Phase::kLoadDenoiser) graph_.begin_part(folder_);
    mark();
  };
  observer.finished = [this, finished = observer.finished](engine::Phase phase, double seconds) {
    if (finished) finished(phase, seconds);
    mark();
  };
  observer.progressed = [this, progressed = observer.progressed](engine::Phase phase, int64_t done,
                                                                 int64_t total) {
    if (progressed) progressed(phase, done, total);
    mark();
  };
}

std::vector<bool> GraphTracer::are_held(int64_t nodes, int64_t steps) const {
  std::vector<bool> held;
  auto next = marks_.begin();
  for (int64_t node = 0; node < nodes; ++node) {
    while (next != marks_.end() && next->node <= node) ++next;
    const Mark& at = *(next - 1);
    held.push_back(at.phase == Phase::kDenoise &&
                   (at.is_loading || at.step == kBeforeSteps || at.step == steady_step(steps)));
  }
  return held;
}

void GraphTracer::finish(RankTrace& trace, int64_t steps, bool keeps_graph) {
  auto [graph, origins] = graph_.take_all();
  const std::vector<int64_t> nodes = nodes_of(trace.events, recorder_.origins(), graph, origins);
  const std::vector<std::string> roles = roles_of(graph);
  for (size_t i = 0; i < nodes.size(); ++i) {
    auto* const operation = std::get_if<OperationEvent>(&trace.events[i].what);
    if (nodes[i] != kNoNode && operation != nullptr && is_attention(operation->name))
      operation->role = roles[static_cast<size_t>(nodes[i])];
  }
  if (!keeps_graph) return;
  std::vector<bool> is_event(graph.nodes.size());
  for (const int64_t node : nodes) {
    if (node != kNoNode) is_event[static_cast<size_t>(node)] = true;
  }
  const std::vector<bool> held = are_held(std::ssize(graph.nodes), steps);
  GraphPart part(std::move(graph), held, is_event);
  trace.graph = std::make_shared<const Graph>(part.take());
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i] != kNoNode) trace.events[i].node = part.numbers()[static_cast<size_t>(nodes[i])];
  }
}

}  // namespace tessera::plan
