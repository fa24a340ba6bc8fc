#include "plan/graph_roles.h"

#include <iterator>
#include <set>

#include "plan/views.h"

namespace tessera::plan {
namespace {

using Readers = std::vector<std::vector<size_t>>;  // nodes by the value they read

Readers readers_of(const Graph& graph) {
  Readers readers(graph.values.size());
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const ValueId value : graph.nodes[i].reads) {
      if (value != kNoValue) readers[static_cast<size_t>(value)].push_back(i);
    }
  }
  return readers;
}

// The role of the first product with weights that depends on what the node writes; "" if there is none.
std::string layer_after(const Graph& graph, const Readers& readers, size_t node) {
  std::set<size_t> ahead, seen;
  const auto follow = [&](size_t from) {
    for (const ValueId value : graph.nodes[from].writes) {
      for (const size_t reader : readers[static_cast<size_t>(value)]) {
        if (seen.insert(reader).second) ahead.insert(reader);
      }
    }
  };
  for (follow(node); !ahead.empty(); ahead.erase(ahead.begin())) {
    const GraphNode& next = graph.nodes[*ahead.begin()];
    if (is_product(next.name) && !next.role.empty()) return next.role;
    follow(*ahead.begin());
  }
  return "";
}

// Walks through the nodes of a block from a node on.
class Neighbours {
 public:
  explicit Neighbours(const Graph& graph) : graph_(graph), readers_(readers_of(graph)) {
    writers_.resize(graph.values.size());
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      for (const ValueId value : graph.nodes[i].writes) writers_[static_cast<size_t>(value)] = {i};
    }
  }

  // The nearest node with one of `roles`, in the order of the program, that values of `node` go to or come
  // from; returns its role, or "" if there is none.
  std::string role_near(size_t node, bool is_ahead, const std::vector<std::string>& roles) const {
    std::set<size_t> near, seen;
    const auto follow = [&](size_t from) {
      const GraphNode& at = graph_.nodes[from];
      for (const ValueId value : is_ahead ? at.writes : at.reads) {
        if (value == kNoValue) continue;
        for (const size_t next : (is_ahead ? readers_ : writers_)[static_cast<size_t>(value)]) {
          if (graph_.nodes[next].block == graph_.nodes[node].block && seen.insert(next).second)
            near.insert(next);
        }
      }
    };
    for (follow(node); !near.empty();) {
      const auto next = is_ahead ? near.begin() : std::prev(near.end());
      const size_t nearest = *next;
      near.erase(next);
      if (!roles[nearest].empty()) return roles[nearest];
      follow(nearest);
    }
    return "";
  }

 private:
  const Graph& graph_;
  Readers readers_, writers_;
};

}  // namespace

std::vector<std::string> parts_of(const Graph& graph) {
  std::vector<std::string> roles = roles_of(graph), parts;
  for (size_t i = 0; i < roles.size(); ++i) {
    if (!graph.nodes[i].collective.axis.empty()) roles[i].clear();
  }
  const Neighbours neighbours(graph);
  for (size_t i = 0; i < roles.size(); ++i) {
    std::string role = roles[i];
    const bool is_ahead = graph.nodes[i].name.ends_with("norm");
    if (role.empty()) role = neighbours.role_near(i, is_ahead, roles);
    if (role.empty()) role = neighbours.role_near(i, !is_ahead, roles);
    parts.push_back(role.substr(0, role.find('.')));
  }
  return parts;
}

std::vector<std::string> roles_of(const Graph& graph) {
  const Readers readers = readers_of(graph);
  std::vector<std::string> roles;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const GraphNode& node = graph.nodes[i];
    roles.push_back(node.collective.axis.empty() ? node.role : node.collective.axis);
    if (!is_attention(node.name)) continue;
    const std::string layer = layer_after(graph, readers, i);
    if (!layer.empty()) roles.back() = attention_beside(layer);
  }
  return roles;
}

}  // namespace tessera::plan
