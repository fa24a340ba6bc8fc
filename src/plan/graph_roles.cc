#include "plan/graph_roles.h"

#include <set>

#include "plan/views.h"

namespace tessera::plan {
namespace {

using Readers = std::vector<std::vector<size_t>>;  // nodes by value

Readers readers_of(const Graph& graph) {
  Readers readers(graph.values.size());
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const ValueId value : graph.nodes[i].reads) {
      if (value != kNoValue) readers[static_cast<size_t>(value)].push_back(i);
    }
  }
  return readers;
}

// The role of the first product with weights that what the node writes comes to; "" if it comes to none.
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

}  // namespace

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
