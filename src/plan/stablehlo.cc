#include "plan/stablehlo.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "core/error.h"
#include "plan/align_graphs.h"
#include "plan/stablehlo_by_rank.h"
#include "plan/stablehlo_collectives.h"
#include "plan/stablehlo_lowering.h"

namespace tessera::plan {
namespace {

constexpr int64_t kVersion = 1;

OrderedJson shape_json(const TensorShape& own, const TensorShape& type) {
  OrderedJson json = {{"dtype", mlir_dtype(type.dtype)}, {"shape", own.sizes}};
  if (own.sizes != type.sizes) json["padded_shape"] = type.sizes;
  return json;
}

// [begin, end] of each dimension.
std::vector<std::array<int64_t, 2>> slice_of(const std::vector<int64_t>& whole,
                                             const std::vector<weights::Slice>& slices) {
  std::vector<std::array<int64_t, 2>> ranges;
  ranges.reserve(whole.size());
  for (const int64_t size : whole) ranges.push_back({0, size});
  for (const weights::Slice& slice : slices)
    ranges[static_cast<size_t>(slice.dim)] = {slice.begin, slice.begin + slice.length};
  return ranges;
}

// `own` is the rank's part, and `type` the program's.
OrderedJson description_of(const GraphArgument& argument, const TensorShape& own, const TensorShape& type) {
  OrderedJson json = OrderedJson::object();
  json["name"] =
      argument.kind == GraphArgument::Kind::kWeight ? argument.part + "/" + argument.key : argument.name;
  if (argument.is_zero) {
    json["kind"] = "constant";
    json["value"] = 0;
  } else if (argument.kind != GraphArgument::Kind::kWeight) {
    json["kind"] = argument.kind == GraphArgument::Kind::kCache ? "cache" : "input";
  } else {
    json["kind"] = "weight";
    json["part"] = argument.part;
    json["key"] = argument.key;
  }
  if (!argument.is_zero && !argument.whole.empty()) json["slice"] = slice_of(argument.whole, argument.slices);
  json.update(shape_json(own, type));
  return json;
}

OrderedJson description_of(const GraphResult& result, const TensorShape& own, const TensorShape& type) {
  OrderedJson json = {{"name", result.name}};
  if (result.value == kNoValue) json["kind"] = "padding";
  if (!result.whole.empty()) json["slice"] = slice_of(result.whole, result.slices);
  json.update(shape_json(own, type));
  return json;
}

OrderedJson description_of(const std::vector<MeshAxis>& mesh) {
  OrderedJson json = OrderedJson::object();
  for (const MeshAxis& axis : mesh) json[axis.name] = axis.size;
  return json;
}

std::vector<int64_t> devices(const std::vector<MeshAxis>& mesh) {
  int64_t count = 1;
  for (const MeshAxis& axis : mesh) count *= axis.size;
  std::vector<int64_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), int64_t{0});
  return all;
}

// `partners` are the ranks of a program without shardings.
OrderedJson beginning_of_description(const ProgramInfo& info, const std::vector<int64_t>& partners,
                                     const ProgramSharding* sharding) {
  const std::vector<int64_t> partitions = sharding == nullptr ? partners : devices(sharding->mesh);
  return {{"version", kVersion},
          {"model", info.model},
          {"part", info.part},
          {"dtype", info.dtype},
          {"rank", info.rank},
          {"world_size", sharding == nullptr ? info.world_size : std::ssize(partitions)},
          {"partitions", partitions}};
}

// For an argument or a result.
std::string attribute_of(const ValueSharding* sharding) {
  return sharding == nullptr ? ""
                             : fmt::format(" {{sdy.sharding = #sdy.sharding{}}}", sdy_sharding(*sharding));
}

OrderedJson with_sharding(OrderedJson json, const ValueSharding* sharding) {
  if (sharding != nullptr) json["sharding"] = *sharding;
  return json;
}

// For aligned graphs.
MlirValue constant_of(MlirBuilder& b, std::span<const Graph> ranks, size_t argument) {
  std::vector<at::Tensor> contents;
  bool are_equal = true;
  for (const Graph& each : ranks) {
    contents.push_back(each.arguments[argument].contents);
    are_equal = are_equal && contents.back().equal(contents.front());
  }
  return are_equal ? b.constant(contents.front()) : b.by_partition(contents);
}

// Lowers what all ranks do in the same way. `arguments` are those of the program.
std::vector<MlirValue> lower_together(std::span<const Graph> ranks, const std::vector<MlirValue>& arguments,
                                      MlirBuilder& builder, const ProgramSharding* sharding) {
  Lowering lowering(ranks, builder);
  if (sharding != nullptr) lowering.constrain(sharding->nodes);
  const Graph& graph = ranks.front();
  size_t next = 0;
  for (size_t i = 0; i < graph.arguments.size(); ++i) {
    const GraphArgument& argument = graph.arguments[i];
    if (argument.kind != GraphArgument::Kind::kConstant) {
      lowering.set(argument.value, arguments.at(next++));
    } else {
      builder.begin_node({.name = "constant", .role = argument.name});
      lowering.set(argument.value, constant_of(builder, ranks, i));
    }
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!is_collective(graph.nodes[i])) {
      lowering.lower(i);
      continue;
    }
    lowering.begin(i);
    CollectiveCall call{.graphs = ranks, .nodes = {}};
    for (const Graph& each : ranks) call.nodes.push_back(&each.nodes[i]);
    const CollectiveRule& rule = collective_rule(call.node());
    std::vector<MlirValue> values = rule.pack(lowering, call);
    for (MlirValue& each : values) each = rule.exchange(builder, call, each);
    rule.unpack(lowering, call, values);
  }
  std::vector<MlirValue> results;
  for (const GraphResult& each : graph.results) results.push_back(lowering.value(each.value));
  return results;
}

std::vector<MlirValue> lower(std::span<const Graph> ranks, const SharedArguments& shared,
                             const std::vector<MlirValue>& arguments, MlirBuilder& builder,
                             const ProgramSharding* sharding) {
  if (const std::optional<std::vector<Graph>> aligned = align_graphs(ranks))
    return lower_together(*aligned, arguments, builder, sharding);
  return lower_by_rank(ranks, shared, arguments, builder);
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
  std::optional<MlirValue>& found = values_.at(static_cast<size_t>(id));
  if (const std::optional<MlirValue>& held = held_[static_cast<size_t>(id)]; !found && held) {
    const Sizes64& sizes = type_of(id).sizes;
    found = builder_->in_node(between_branches(), [&] {
      return builder_->slice(builder_->outer(*held), Sizes64(sizes.size()), sizes);
    });
  }
  TESSERA_CHECK(found, "value {} is used before it is computed", id);
  return *found;
}

void Lowering::enter(MlirBuilder& region) {
  builder_ = &region;
  values_.assign(values_.size(), std::nullopt);
}

void Lowering::set(ValueId id, const MlirValue& value) {
  values_.at(static_cast<size_t>(id)) = value;
}

void Lowering::write(const GraphNode& node, size_t i, const MlirValue& value) {
  const ValueId id = node.writes.at(i);
  const TensorShape& type = type_of(id);
  TESSERA_CHECK(value.sizes() == type.sizes, "{} gives {}, and not {}", node.name, mlir_type(value.type),
                mlir_type(type));
  set(id, constrained(builder_->convert(value, type.dtype), &NodeSharding::writes, i));
}

MlirValue Lowering::constrained(const MlirValue& value, Constraints of, size_t i) {
  if (constraints_.empty() || i >= (constraints_[node_].*of).size()) return value;
  MlirValue constrained = value;
  for (const ValueSharding& each : (constraints_[node_].*of)[i])
    constrained = builder_->constrained(constrained, sdy_sharding(each));
  return constrained;
}

NodeLocation Lowering::location_of(size_t number) const {
  const GraphNode& node = ranks_[0].nodes.at(number);
  return {.name = node.name,
          .role = roles_[number],
          .block = node.block,
          .number = static_cast<int64_t>(number) + 1};
}

void Lowering::begin(size_t number) {
  node_ = number;
  builder_->begin_node(location_of(number));
}

void Lowering::lower(size_t number) {
  begin(number);
  const GraphNode& node = ranks_[0].nodes[node_];
  const auto has_rule = [&](const LoweringRules* rules) { return rules->contains(node.name); };
  const std::array all = {&operation_rules(), &image_rules(), &libtorch_rules(), &view_rules()};
  const auto found = std::find_if(all.begin(), all.end(), has_rule);
  if (found == all.end())
    usage_error(field("stablehlo"), "the operation '{}'{} has no form in StableHLO", node.name,
                node.role.empty() ? "" : " of " + node.role);
  (*found)->at(node.name)(*this, node);
}

std::vector<const GraphNode*> Lowering::by_rank() const {
  std::vector<const GraphNode*> nodes;
  for (const Graph& each : ranks_) nodes.push_back(&each.nodes[node_]);
  return nodes;
}

Program stablehlo_program(std::span<const Graph> world, size_t rank, const ProgramInfo& info,
                          const ProgramSharding* sharding) {
  const std::vector<int64_t> partners = partners_of(world, static_cast<int64_t>(rank));
  const std::vector<Graph> ranks = graphs_of(world, partners);
  const auto shown = static_cast<size_t>(
      std::find(partners.begin(), partners.end(), static_cast<int64_t>(rank)) - partners.begin());
  const SharedArguments shared = share_arguments(ranks);
  const Graph& graph = ranks[shown];
  const auto type_in = [&](ValueId value) { return graph.values.at(static_cast<size_t>(value)); };
  MlirBuilder builder(std::ssize(ranks));
  OrderedJson arguments = OrderedJson::array(), results = OrderedJson::array();
  std::vector<std::string> parameters;
  std::vector<MlirValue> given;
  int64_t weights_bytes = 0;
  for (size_t i = 0; i < shared.shapes.size(); ++i) {
    const GraphArgument& argument = shared.of_ranks[shown][i];
    if (argument.kind == GraphArgument::Kind::kConstant) continue;
    const TensorShape& type = shared.shapes[i];
    const TensorShape& part = argument.is_zero ? type : type_in(argument.value);
    if (argument.kind == GraphArgument::Kind::kWeight && !argument.is_zero) weights_bytes += part.bytes();
    const ValueSharding* const own = sharding != nullptr ? &sharding->arguments[i] : nullptr;
    given.push_back(builder.argument(type));
    parameters.push_back(fmt::format("{}: {}{}", given.back().name, mlir_type(type), attribute_of(own)));
    arguments.push_back(with_sharding(description_of(argument, part, type), own));
  }
  const SharedResults given_back = share_results(ranks);
  const std::vector<MlirValue> made = lower(ranks, shared, given, builder, sharding);
  std::vector<std::string> names, types, declared;
  for (size_t i = 0; i < made.size(); ++i) {
    const ValueSharding* const own = sharding != nullptr ? &sharding->results[i] : nullptr;
    names.push_back(made[i].name);
    types.push_back(mlir_type(made[i].type));
    declared.push_back(types.back() + attribute_of(own));
    const GraphResult& result = given_back.of_ranks[shown][i];
    const TensorShape& type = made[i].type;
    results.push_back(with_sharding(
        description_of(result, result.value == kNoValue ? type : type_in(result.value), type), own));
  }
  const MlirBuilder::Text body = builder.text(made);
  OrderedJson description = beginning_of_description(info, partners, sharding);
  description.update({{"prompt_of_sample", graph.prompt_of_sample},
                      {"values", graph.numbers},
                      {"arguments", std::move(arguments)},
                      {"results", std::move(results)}});
  if (graph.images) description["images"] = {graph.images->begin, graph.images->end()};
  if (sharding != nullptr) description["mesh"] = description_of(sharding->mesh);
  return {.text = fmt::format(
              "module @tessera {{\n{}  func.func public @main({}) -> ({}) {{\n{}    return {} : {}\n"
              "  }}\n}} loc(\"{}\"(\"{}\"))\n{}",
              sharding == nullptr ? "" : fmt::format("  {}\n", sdy_mesh(sharding->mesh)),
              fmt::join(parameters, ", "), fmt::join(declared, ", "), body.lines, fmt::join(names, ", "),
              fmt::join(types, ", "), info.part, info.model, body.locations),
          .description = std::move(description),
          .weights_bytes = weights_bytes};
}

}  // namespace tessera::plan
