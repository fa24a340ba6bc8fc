// Turns the nodes of a graph into StableHLO. Files of rules: operations of ours (stablehlo_operations.cc, and
// those of images in stablehlo_images.cc), calls of libtorch (stablehlo_libtorch.cc), views and writes
// (stablehlo_views.cc). Collectives have rules of another form (stablehlo_collectives.h).
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

// Of lines that pass values from branch to branch, padded to the largest, which are part of no node.
inline NodeLocation between_branches() {
  return {.name = "branches"};
}

// The values of the graph that a program has computed so far.
class Lowering {
 public:
  // The graphs of all ranks, which differ in places and contents alone, or of one. The builder must outlive
  // this object, or enter() replace it.
  Lowering(std::span<const Graph> ranks, MlirBuilder& builder)
      : ranks_(ranks),
        roles_(roles_of(ranks[0])),
        builder_(&builder),
        values_(ranks[0].values.size()),
        held_(ranks[0].values.size()) {}

  MlirBuilder& builder() { return *builder_; }
  const TensorShape& type_of(ValueId value) const { return ranks_[0].values.at(static_cast<size_t>(value)); }

  // An operand of a node, by its number in `reads`; nothing where the operation does without.
  std::optional<MlirValue> maybe_read(const GraphNode& node, size_t i);
  MlirValue read(const GraphNode& node, size_t i);
  MlirValue read_wide(const GraphNode& node, size_t i) {
    return builder_->convert(read(node, i), at::kFloat);
  }
  MlirValue value(ValueId id);
  // Sets a result of a node, in its dtype; its shape must be that of the graph.
  void write(const GraphNode& node, size_t i, const MlirValue& value);
  void set(ValueId id, const MlirValue& value);

  // Constrains what nodes read and write.
  void constrain(const std::vector<NodeSharding>& nodes) { constraints_ = nodes; }

  NodeLocation location_of(size_t node) const;
  // What is written from here on is part of the node of this number.
  void begin(size_t node);
  // Lowers a node by its number, which is no collective. Throws Error(kUsage) for one without a form.
  void lower(size_t node);
  // The present node as each rank has it.
  std::vector<const GraphNode*> by_rank() const;

  // From here on, a region of the program is written. Of the values so far it sees those that are held.
  void enter(MlirBuilder& region);
  // Has regions see a value that the program around them has. Its elements may be followed by others, which
  // ranks with larger parts have.
  void hold(ValueId id, const MlirValue& around) { held_.at(static_cast<size_t>(id)) = around; }

 private:
  using Constraints = std::vector<std::vector<ValueSharding>> NodeSharding::*;
  // The value as the present node's operand or result number i is constrained.
  MlirValue constrained(const MlirValue& value, Constraints of, size_t i);

  std::span<const Graph> ranks_;
  std::vector<std::string> roles_;  // of the nodes
  size_t node_ = 0;                 // the number of the present one
  std::span<const NodeSharding> constraints_;
  MlirBuilder* builder_;
  std::vector<std::optional<MlirValue>> values_, held_;
};

using LoweringRule = void (*)(Lowering&, const GraphNode&);
using LoweringRules = std::map<std::string, LoweringRule, std::less<>>;

// The rows and columns of x [B, C, H, W], each twice.
MlirValue doubled_image(MlirBuilder& builder, const MlirValue& x);

const LoweringRules& operation_rules();
const LoweringRules& image_rules();
const LoweringRules& libtorch_rules();
const LoweringRules& view_rules();

// An attribute of a node, which must be there.
template <typename T>
T attribute(const GraphNode& node, const std::string& name) {
  const GraphAttribute* const found = node.find(name);
  TESSERA_CHECK(found != nullptr && std::holds_alternative<T>(*found), "{} has no {}", node.name, name);
  return std::get<T>(*found);
}

}  // namespace tessera::plan
