#include "plan/stablehlo.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "core/error.h"
#include "plan/align_graphs.h"
#include "plan/stablehlo_lowering.h"

namespace tessera::plan {
namespace {

constexpr int64_t kVersion = 1;

OrderedJson description_of(const GraphArgument& argument, const TensorShape& type) {
  OrderedJson json = OrderedJson::object();
  if (argument.kind == GraphArgument::Kind::kInput) {
    json["name"] = argument.name;
    json["kind"] = "input";
  } else if (argument.is_zero) {
    json["name"] = argument.part + "/" + argument.key;
    json["kind"] = "constant";
    json["value"] = 0;
  } else {
    json["name"] = argument.part + "/" + argument.key;
    json["kind"] = "weight";
    json["part"] = argument.part;
    json["key"] = argument.key;
    std::vector<std::array<int64_t, 2>> ranges;
    for (const int64_t size : argument.shape_in_file) ranges.push_back({0, size});
    for (const weights::Slice& slice : argument.slices)
      ranges[static_cast<size_t>(slice.dim)] = {slice.begin, slice.begin + slice.length};
    json["slice"] = ranges;
  }
  json["dtype"] = mlir_dtype(type.dtype);
  json["shape"] = type.sizes;
  return json;
}

OrderedJson description_of(const std::vector<MeshAxis>& mesh) {
  OrderedJson json = OrderedJson::object();
  for (const MeshAxis& axis : mesh) json[axis.name] = axis.size;
  return json;
}

// Of an argument or a result.
std::string attribute_of(const ValueSharding* sharding) {
  return sharding == nullptr ? ""
                             : fmt::format(" {{sdy.sharding = #sdy.sharding{}}}", sdy_sharding(*sharding));
}

OrderedJson with_sharding(OrderedJson json, const ValueSharding* sharding) {
  if (sharding != nullptr) json["sharding"] = *sharding;
  return json;
}

MlirValue constant_of(MlirBuilder& b, std::span<const Graph> ranks, size_t argument) {
  std::vector<at::Tensor> contents;
  bool are_equal = true;
  for (const Graph& each : ranks) {
    contents.push_back(each.arguments[argument].contents);
    are_equal = are_equal && contents.back().equal(contents.front());
  }
  return are_equal ? b.constant(contents.front()) : b.by_partition(contents);
}

}  // namespace

std::optional<MlirValue> Lowering::maybe_read(const GraphNode& node, size_t i) {
  if (i >= node.reads.size() || node.reads[i] == kNoValue) return std::nullopt;
  return constrained(value(node.reads[i]), &NodeSharding::reads, i);
}

MlirValue Lowering::read(const GraphNode& node, size_t i) {
  const auto found = maybe_read(node, i);
  TESSERA_CHECK(found, "{} has no operand {}", node.name, i);
  return *found;
}

MlirValue Lowering::value(ValueId id) {
  const auto& found = values_.at(static_cast<size_t>(id));
  TESSERA_CHECK(found, "value {} is used before it is computed", id);
  return *found;
}

void Lowering::set(ValueId id, const MlirValue& value) {
  values_.at(static_cast<size_t>(id)) = value;
}

void Lowering::write(const GraphNode& node, size_t i, const MlirValue& value) {
  const ValueId id = node.writes.at(i);
  const TensorShape& type = type_of(id);
  TESSERA_CHECK(value.sizes() == type.sizes, "{} gives {}, and not {}", node.name, mlir_type(value.type),
                mlir_type(type));
  set(id, constrained(builder_.convert(value, type.dtype), &NodeSharding::writes, i));
}

MlirValue Lowering::constrained(const MlirValue& value, Constraints of, size_t i) {
  if (constraints_.empty() || i >= (constraints_[node_].*of).size()) return value;
  MlirValue constrained = value;
  for (const ValueSharding& each : (constraints_[node_].*of)[i])
    constrained = builder_.constrained(constrained, sdy_sharding(each));
  return constrained;
}

void Lowering::run() {
  for (node_ = 0; node_ < ranks_[0].nodes.size(); ++node_) {
    const GraphNode& node = ranks_[0].nodes[node_];
    builder_.begin_node({.name = node.name,
                         .role = roles_[node_],
                         .block = node.block,
                         .number = static_cast<int64_t>(node_) + 1});
    const auto has_rule = [&](const LoweringRules* rules) { return rules->contains(node.name); };
    const std::array all = {&operation_rules(), &image_rules(), &libtorch_rules(), &view_rules(),
                            &collective_rules()};
    const auto found = std::find_if(all.begin(), all.end(), has_rule);
    if (found == all.end())
      throw Error(ErrorKind::kUsage, "stablehlo",
                  fmt::format("the operation '{}'{} has no form in StableHLO", node.name,
                              node.role.empty() ? "" : " of " + node.role));
    (*found)->at(node.name)(*this, node);
  }
}

std::vector<const GraphNode*> Lowering::by_rank() const {
  std::vector<const GraphNode*> nodes;
  for (const Graph& each : ranks_) nodes.push_back(&each.nodes[node_]);
  return nodes;
}

bool works_with_others(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                     [](const GraphNode& node) { return node.name.starts_with("collective."); });
}

Program stablehlo_program(std::span<const Graph> given, size_t shown, const ProgramInfo& info,
                          const ProgramSharding* sharding) {
  const std::vector<Graph> aligned = align_graphs(given);
  const std::span<const Graph> ranks(aligned);
  const Graph& graph = ranks[shown];
  Lowering lowering(ranks);
  if (sharding != nullptr) lowering.constrain(sharding->nodes);
  OrderedJson arguments = OrderedJson::array(), results = OrderedJson::array();
  std::vector<std::string> parameters;
  for (size_t i = 0; i < graph.arguments.size(); ++i) {
    const GraphArgument& each = graph.arguments[i];
    if (each.kind == GraphArgument::Kind::kConstant) continue;
    const TensorShape& type = lowering.type_of(each.value);
    const MlirValue value = lowering.builder().argument(type);
    lowering.set(each.value, value);
    const ValueSharding* const own = sharding != nullptr ? &sharding->arguments[i] : nullptr;
    parameters.push_back(fmt::format("{}: {}{}", value.name, mlir_type(type), attribute_of(own)));
    arguments.push_back(with_sharding(description_of(each, type), own));
  }
  for (size_t i = 0; i < graph.arguments.size(); ++i) {
    if (graph.arguments[i].kind != GraphArgument::Kind::kConstant) continue;
    lowering.builder().begin_node({.name = "constant", .role = graph.arguments[i].name});
    lowering.set(graph.arguments[i].value, constant_of(lowering.builder(), ranks, i));
  }
  lowering.run();
  std::vector<std::string> names, types, declared;
  std::vector<MlirValue> values;
  for (size_t i = 0; i < graph.results.size(); ++i) {
    const GraphResult& each = graph.results[i];
    const MlirValue value = lowering.value(each.value);
    const ValueSharding* const own = sharding != nullptr ? &sharding->results[i] : nullptr;
    values.push_back(value);
    names.push_back(value.name);
    types.push_back(mlir_type(value.type));
    declared.push_back(types.back() + attribute_of(own));
    results.push_back(with_sharding(
        {{"name", each.name}, {"dtype", mlir_dtype(value.type.dtype)}, {"shape", value.sizes()}}, own));
  }
  const MlirBuilder::Text body = lowering.builder().text(values);
  Program program{.text = fmt::format(
                      "module @tessera {{\n{}  func.func public @main({}) -> ({}) {{\n{}    return {} : {}\n"
                      "  }}\n}} loc(\"{}\"(\"{}\"))\n{}",
                      sharding == nullptr ? "" : fmt::format("  {}\n", sdy_mesh(sharding->mesh)),
                      fmt::join(parameters, ", "), fmt::join(declared, ", "), body.lines,
                      fmt::join(names, ", "), fmt::join(types, ", "), info.part, info.model, body.locations),
                  .description = {{"version", kVersion},
                                  {"model", info.model},
                                  {"part", info.part},
                                  {"dtype", info.dtype},
                                  {"rank", info.rank},
                                  {"world_size", info.world_size},
                                  {"prompt_of_sample", graph.prompt_of_sample},
                                  {"values", graph.numbers},
                                  {"arguments", std::move(arguments)},
                                  {"results", std::move(results)}}};
  if (sharding != nullptr) program.description["mesh"] = description_of(sharding->mesh);
  return program;
}

}  // namespace tessera::plan
