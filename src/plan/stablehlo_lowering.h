// Turns the nodes of a graph into StableHLO. The rules are in several files: our operations
// (stablehlo_operations.cc, and those of images in stablehlo_images.cc), calls of libtorch
// (stablehlo_libtorch.cc), views and writes (stablehlo_views.cc). Collectives have rules of another form
// (stablehlo_collectives.h).
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "plan/graph.h"
#include "plan/graph_roles.h"
#include "plan/mlir_builder.h"
#include "plan/stablehlo_sharding.h"

namespace tessera::plan {

// For lines that pass values, padded to the largest, from branch to branch; they belong to no node.
inline NodeLocation between_branches() {
  return {.name = "branches"};
}

// The values of the graph that a program has computed so far.
class Lowering {
 public:
  // The graphs of all ranks, which differ only in places and contents, or a single graph. The builder must
  // outlive this object, or be replaced by enter().
  Lowering(std::span<const Graph> ranks, MlirBuilder& builder)
      : ranks_(ranks),
        roles_(roles_of(ranks[0])),
        builder_(&builder),
        values_(ranks[0].values.size()),
        held_(ranks[0].values.size()) {}

  MlirBuilder& builder() { return *builder_; }
  const TensorShape& type_of(ValueId value) const { return ranks_[0].values.at(static_cast<size_t>(value)); }

  // An operand of a node, by its number in `reads`; nothing if the operation leaves it out.
  std::optional<MlirValue> maybe_read(const GraphNode& node, size_t i);
  MlirValue read(const GraphNode& node, size_t i);
  MlirValue read_wide(const GraphNode& node, size_t i) {
    return builder_->convert(read(node, i), at::kFloat);
  }
  MlirValue value(ValueId id);
  // Sets a result of a node, in its dtype; its shape must be that of the graph.
  void write(const GraphNode& node, size_t i, const MlirValue& value);
  void set(ValueId id, const MlirValue& value);

  // Constrains the operands and results of nodes.
  void constrain(const std::vector<NodeSharding>& nodes) { constraints_ = nodes; }

  NodeLocation location_of(size_t node) const;
  // Everything written from now on is part of the node with this number.
  void begin(size_t node);
  // Lowers the node with this number, which must not be a collective. Throws Error(kUsage) for one that
  // cannot be expressed.
  void lower(size_t node);
  // The current node as each rank has it.
  std::vector<const GraphNode*> by_rank() const;

  // From now on, a region of the program is written. Of the existing values it sees only those that are held.
  void enter(MlirBuilder& region);
  // Makes a value of the surrounding program visible to regions. Its elements may be followed by others that
  // belong to ranks with larger parts.
  void hold(ValueId id, const MlirValue& around) { held_.at(static_cast<size_t>(id)) = around; }

 private:
  using Constraints = std::vector<std::vector<ValueSharding>> NodeSharding::*;
  // The value, constrained like operand or result number i of the current node.
  MlirValue constrained(const MlirValue& value, Constraints of, size_t i);

  std::span<const Graph> ranks_;
  std::vector<std::string> roles_;  // of the nodes
  size_t node_ = 0;                 // the number of the current node
  std::span<const NodeSharding> constraints_;
  MlirBuilder* builder_;
  std::vector<std::optional<MlirValue>> values_, held_;
};

using LoweringRule = void (*)(Lowering&, const GraphNode&);
using LoweringRules = std::map<std::string, LoweringRule, std::less<>>;

// The rows and columns of x [B, C, H, W], each doubled.
MlirValue doubled_image(MlirBuilder& builder, const MlirValue& x);

const LoweringRules& operation_rules();
const LoweringRules& image_rules();
const LoweringRules& libtorch_rules();
const LoweringRules& view_rules();

// An attribute that a node must have.
template <typename T>
T attribute(const GraphNode& node, const std::string& name) {
  const GraphAttribute* const found = node.find(name);
  TESSERA_CHECK(found != nullptr && std::holds_alternative<T>(*found), "{} has no {}", node.name, name);
  return std::get<T>(*found);
}

}  // namespace tessera::plan
