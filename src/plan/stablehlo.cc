#include "plan/stablehlo.h"

#include <fmt/ranges.h>

#include "core/error.h"
#include "plan/stablehlo_lowering.h"

namespace tessera::plan {
namespace {

constexpr int64_t kVersion = 1;

OrderedJson description_of(const GraphArgument& argument, const TensorShape& type) {
  OrderedJson json = OrderedJson::object();
  if (argument.kind == GraphArgument::Kind::kInput) {
    json["name"] = argument.name;
    json["kind"] = "input";
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

void lower(Lowering& lowering, const GraphNode& node) {
  for (const LoweringRules* rules : {&operation_rules(), &image_rules(), &libtorch_rules(), &view_rules()}) {
    const auto rule = rules->find(node.name);
    if (rule != rules->end()) return rule->second(lowering, node);
  }
  throw Error(ErrorKind::kUsage, "stablehlo",
              fmt::format("the operation '{}'{} has no form in StableHLO", node.name,
                          node.role.empty() ? "" : " of " + node.role));
}

}  // namespace

std::optional<MlirValue> Lowering::maybe_read(const GraphNode& node, size_t i) {
  if (i >= node.reads.size() || node.reads[i] == kNoValue) return std::nullopt;
  return value(node.reads[i]);
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
  set(id, builder_.convert(value, type.dtype));
}

Program stablehlo_program(const Graph& graph, const ProgramInfo& info) {
  Lowering lowering(graph);
  OrderedJson arguments = OrderedJson::array(), results = OrderedJson::array();
  std::vector<std::string> parameters;
  for (const GraphArgument& each : graph.arguments) {
    if (each.kind == GraphArgument::Kind::kConstant) continue;
    const TensorShape& type = lowering.type_of(each.value);
    const MlirValue value = lowering.builder().argument(type);
    lowering.set(each.value, value);
    parameters.push_back(fmt::format("{}: {}", value.name, mlir_type(type)));
    arguments.push_back(description_of(each, type));
  }
  for (const GraphArgument& each : graph.arguments) {
    if (each.kind == GraphArgument::Kind::kConstant)
      lowering.set(each.value, lowering.builder().constant(each.contents));
  }
  for (const GraphNode& node : graph.nodes) lower(lowering, node);
  std::vector<std::string> names, types;
  std::vector<MlirValue> values;
  for (const GraphResult& each : graph.results) {
    const MlirValue value = lowering.value(each.value);
    values.push_back(value);
    names.push_back(value.name);
    types.push_back(mlir_type(value.type));
    results.push_back(
        {{"name", each.name}, {"dtype", mlir_dtype(value.type.dtype)}, {"shape", value.sizes()}});
  }
  return {.text = fmt::format(
              "module @tessera {{\n  func.func public @main({}) -> ({}) {{\n{}    return {} : {}\n  }}\n}}\n",
              fmt::join(parameters, ", "), fmt::join(types, ", "), lowering.builder().text(values),
              fmt::join(names, ", "), fmt::join(types, ", ")),
          .description = {{"version", kVersion},
                          {"model", info.model},
                          {"part", info.part},
                          {"rank", info.rank},
                          {"world_size", info.world_size},
                          {"prompt_of_sample", graph.prompt_of_sample},
                          {"values", graph.numbers},
                          {"arguments", std::move(arguments)},
                          {"results", std::move(results)}}};
}

}  // namespace tessera::plan
