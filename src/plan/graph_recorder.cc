#include "plan/graph_recorder.h"

#include <ATen/Functions.h>
#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "core/error.h"

namespace tessera::plan {
namespace {

thread_local GraphRecorder* current_recorder = nullptr;

const void* address_of(const at::Tensor& x) {
  return x.storage().unsafeGetStorageImpl();
}

int64_t elements_of(const at::Tensor& x) {
  return static_cast<int64_t>(x.storage().nbytes() / x.element_size());
}

// Whether the elements of a tensor are all of its storage.
bool is_whole(const at::Tensor& x) {
  return x.numel() == elements_of(x) && x.is_non_overlapping_and_dense();
}

void for_each_tensor(const c10::IValue& value, const auto& visit) {
  if (value.isTensor() && value.toTensor().defined()) visit(value.toTensor());
  if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor> x : value.toOptionalTensorList()) {
      if (x && x->defined()) visit(*x);
    }
  }
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  }
}

bool writes_an_argument(const at::RecordFunction& call) {
  const auto schema = call.operator_schema();
  if (!schema) return false;
  const auto& arguments = schema->arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  });
}

bool is_only_written(const at::RecordFunction& call, size_t argument) {
  const std::string_view name = call.name();
  const bool overwrites = name == "aten::copy_" || name == "aten::zero_" || name == "aten::fill_";
  const auto schema = call.operator_schema();
  return (overwrites && argument == 0) || (schema && schema->arguments()[argument].is_out());
}

GraphAttribute owned(const ops::Attribute& attribute) {
  return std::visit(
      [](const auto& value) -> GraphAttribute {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string_view>) {
          return std::string(value);
        } else {
          return value;
        }
      },
      attribute);
}

}  // namespace

// A call of libtorch that none of our operations makes, and that is not part of another call.
struct GraphCall : at::ObserverContext {
  std::vector<at::Tensor> inputs;
  bool is_symbolic = false;
  std::vector<c10::IValue> constants;  // the arguments, if no input is symbolic
  std::vector<GraphAttribute> arguments;

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
    if (current_recorder->depth_++ > 0 || ops::is_in_operation() || comm::is_in_collective()) return nullptr;
    auto made = std::make_unique<GraphCall>();
    for (const c10::IValue& value : call.inputs())
      for_each_tensor(value, [&](const at::Tensor& x) { made->inputs.push_back(x); });
    made->is_symbolic = std::any_of(made->inputs.begin(), made->inputs.end(),
                                    [](const at::Tensor& x) { return current_recorder->is_symbolic(x); });
    // Values must be read now: a call in place replaces them. What is only written is not read.
    for (size_t i = 0; i < call.inputs().size(); ++i) {
      const c10::IValue& value = call.inputs()[i];
      if (!made->is_symbolic) {
        made->constants.push_back(value);
      } else {
        made->arguments.push_back(is_only_written(call, i) ? GraphAttribute()
                                                           : current_recorder->attribute_of(value));
      }
    }
    return made;
  }

  static void end(const at::RecordFunction& call, at::ObserverContext* context) {
    --current_recorder->depth_;
    if (context == nullptr) return;
    auto& made = *static_cast<GraphCall*>(context);
    const std::string_view name = call.name();
    const bool is_in_place = writes_an_argument(call);
    for (const c10::IValue& value : call.outputs()) {
      for_each_tensor(value, [&](const at::Tensor& out) {
        const auto shares = [&](const at::Tensor& x) { return x.is_alias_of(out); };
        const bool is_alias = std::any_of(made.inputs.begin(), made.inputs.end(), shares);
        if ((!made.is_symbolic && !out.is_meta()) || (is_alias && !is_in_place)) return;
        for (const c10::IValue& each : std::exchange(made.constants, {}))
          made.arguments.push_back(current_recorder->attribute_of(each));
        current_recorder->add_call(name, made.arguments, out, call.handle());
      });
    }
  }
};

GraphRecorder::GraphRecorder(bool is_program)
    : observe_([this](const ops::Dataflow& dataflow) { add(dataflow); }),
      observe_collectives_([this](const comm::CollectiveValues& collective) { add(collective); }, is_program),
      observe_loading_([this](const weights::LoadedWeight& weight) { add_weight(weight); }) {
  TESSERA_CHECK(current_recorder == nullptr, "a thread records one graph at a time");
  current_recorder = this;
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&GraphCall::begin, &GraphCall::end)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .needsIds(true)
                                             .scopes({at::RecordScope::FUNCTION}));
}

GraphRecorder::~GraphRecorder() {
  at::removeCallback(callback_);
  current_recorder = nullptr;
}

bool GraphRecorder::is_known(const at::Tensor& x) const {
  return x.has_storage() && storages_.contains(address_of(x));
}

ValueId GraphRecorder::add_value(const at::Tensor& like) {
  graph_.values.push_back({like.sizes().vec(), like.scalar_type()});
  return std::ssize(graph_.values) - 1;
}

// Constants are identified by their contents, so each is stored once.
ValueId GraphRecorder::constant(const at::Tensor& x) {
  // Other recorders on this thread do not see what this one does.
  const at::DisableRecordFunctionGuard unrecorded;
  const c10::DebugInfoGuard uncounted(c10::DebugInfoKind::PROFILER_STATE, nullptr);
  std::string key;
  {
    const at::Tensor contents = x.contiguous();
    key.assign(static_cast<const char*>(contents.const_data_ptr()), contents.nbytes());
  }
  key += fmt::format("|{} {}", static_cast<int>(x.scalar_type()), fmt::join(x.sizes(), ","));
  const auto [found, is_new] = constants_.emplace(std::move(key), kNoValue);
  if (!is_new) return found->second;
  found->second = add_value(x);
  graph_.arguments.push_back({.kind = GraphArgument::Kind::kConstant,
                              .value = found->second,
                              .name = fmt::format("constant.{}", constants_.size() - 1)});
  return found->second;
}

ValueId GraphRecorder::read(const at::Tensor& x) {
  if (!x.defined()) return kNoValue;
  if (!is_symbolic(x)) return constant(x);
  if (x.numel() == 0) {  // an empty tensor needs no contents, whatever was done to its memory
    graph_.nodes.push_back({.name = "empty", .writes = {add_value(x)}});
    return graph_.nodes.back().writes.front();
  }
  if (!is_known(x)) {  // a call that only makes a view of it does no harm
    graph_.nodes.push_back({.name = "unwritten", .writes = {add_value(x)}});
    return graph_.nodes.back().writes.front();
  }
  Storage& storage = storages_.at(address_of(x));
  if (storage.dtype != x.scalar_type()) reinterpret(storage, x);
  const Geometry geometry = Geometry::of(x);
  for (const auto& [of_view, value] : storage.views) {
    if (of_view == geometry) return value;
  }
  const ValueId value = add_value(x);
  graph_.nodes.push_back({.name = "view",
                          .block = ops::current_block(),
                          .reads = {storage.value},
                          .writes = {value},
                          .whole = storage.geometry,
                          .part = geometry});
  storage.views.emplace_back(geometry, value);
  return value;
}

void GraphRecorder::reinterpret(Storage& storage, const at::Tensor& as) {
  const int64_t bytes = graph_.values[static_cast<size_t>(storage.value)].bytes(),
                elements = bytes / static_cast<int64_t>(c10::elementSize(storage.dtype));
  const Geometry flat{.sizes = {elements}, .strides = {1}};
  ValueId value = storage.value;
  if (storage.geometry != flat) {
    graph_.values.push_back({flat.sizes, storage.dtype});
    graph_.nodes.push_back({.name = "view",
                            .block = ops::current_block(),
                            .reads = {value},
                            .writes = {std::ssize(graph_.values) - 1},
                            .whole = storage.geometry,
                            .part = flat});
    value = graph_.nodes.back().writes.front();
  }
  const Geometry geometry{.sizes = {elements_of(as)}, .strides = {1}};
  graph_.values.push_back({geometry.sizes, as.scalar_type()});
  storage.value = std::ssize(graph_.values) - 1;
  graph_.nodes.push_back(
      {.name = "bitcast", .block = ops::current_block(), .reads = {value}, .writes = {storage.value}});
  storage.geometry = geometry;
  storage.dtype = as.scalar_type();
  storage.views = {{geometry, storage.value}};
}

void GraphRecorder::write(const at::Tensor& x, ValueId value) {
  if (x.numel() == 0 && !is_whole(x)) return;
  const Geometry geometry = Geometry::of(x);
  Storage& storage = storages_[address_of(x)];
  if (is_whole(x)) {
    storage = {.held = x.storage().getWeakStorageImpl(),
               .value = value,
               .geometry = geometry,
               .dtype = x.scalar_type(),
               .views = {{geometry, value}}};
    return;
  }
  if (storage.value == kNoValue) {
    storage.held = x.storage().getWeakStorageImpl();
    storage.dtype = x.scalar_type();
    storage.geometry = {.sizes = {elements_of(x)}, .strides = {1}};
    graph_.values.push_back({storage.geometry.sizes, storage.dtype});
    storage.value = std::ssize(graph_.values) - 1;
    graph_.nodes.push_back({.name = "empty", .block = ops::current_block(), .writes = {storage.value}});
  }
  if (storage.dtype != x.scalar_type()) reinterpret(storage, x);
  graph_.values.push_back({storage.geometry.sizes, storage.dtype});
  const ValueId whole = std::ssize(graph_.values) - 1;
  graph_.nodes.push_back({.name = "write",
                          .block = ops::current_block(),
                          .reads = {storage.value, value},
                          .writes = {whole},
                          .whole = storage.geometry,
                          .part = geometry});
  storage.value = whole;
  storage.views = {{storage.geometry, whole}, {geometry, value}};
}

void GraphRecorder::add_input(const std::string& name, const at::Tensor& x, at::IntArrayRef whole,
                              std::vector<weights::Slice> slices) {
  const ValueId value = add_value(x);
  graph_.arguments.push_back({.kind = GraphArgument::Kind::kInput,
                              .value = value,
                              .name = name,
                              .whole = whole.vec(),
                              .slices = std::move(slices)});
  storages_[address_of(x)] = {.held = x.storage().getWeakStorageImpl(),
                              .value = value,
                              .geometry = Geometry::of(x),
                              .dtype = x.scalar_type(),
                              .views = {{Geometry::of(x), value}}};
}

void GraphRecorder::add_step_input(const std::string& name, const at::Tensor& x, at::IntArrayRef whole,
                                   std::vector<weights::Slice> slices) {
  add_input(name, x, whole, std::move(slices));
  step_inputs_.insert(graph_.arguments.back().value);
}

void GraphRecorder::add_result(const std::string& name, const at::Tensor& x, at::IntArrayRef whole,
                               std::vector<weights::Slice> slices) {
  graph_.results.push_back({name, read(x), whole.vec(), std::move(slices)});
}

void GraphRecorder::add_weight(const weights::LoadedWeight& weight) {
  const at::Tensor& x = weight.tensor;
  const bool is_converted = weight.stored_dtype != x.scalar_type();
  ValueId value = add_value(x);
  graph_.values.back().dtype = weight.stored_dtype;
  graph_.arguments.push_back({.kind = GraphArgument::Kind::kWeight,
                              .value = value,
                              .part = part_,
                              .key = weight.key,
                              .whole = weight.shape.vec(),
                              .slices = weight.slices.vec()});
  if (is_converted) {
    const ValueId converted = add_value(x);
    graph_.nodes.push_back({.name = "convert", .reads = {value}, .writes = {converted}});
    value = converted;
  }
  storages_[address_of(x)] = {.held = x.storage().getWeakStorageImpl(),
                              .value = value,
                              .geometry = Geometry::of(x),
                              .dtype = x.scalar_type(),
                              .views = {{Geometry::of(x), value}}};
}

GraphAttribute GraphRecorder::attribute_of(const c10::IValue& value) {
  if (value.isTensor())
    return value.toTensor().defined() ? GraphAttribute(ValueRef{read(value.toTensor())}) : GraphAttribute();
  if (value.isTensorList()) {
    std::vector<ValueRef> all;
    for (const at::Tensor& x : value.toTensorVector()) all.push_back({read(x)});
    return all;
  }
  if (value.isOptionalTensorList()) {
    std::vector<ValueRef> all;
    for (const std::optional<at::Tensor> x : value.toOptionalTensorList())
      all.push_back({x && x->defined() ? read(*x) : kNoValue});
    return all;
  }
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  if (value.isString()) return value.toStringRef();
  if (value.isIntList()) return value.toIntVector();
  if (value.isDoubleList()) return value.toDoubleVector();
  return {};
}

void GraphRecorder::add_call(std::string_view name, std::vector<GraphAttribute> arguments,
                             const at::Tensor& out, uint64_t call) {
  if (name.starts_with("aten::empty") || name.starts_with("aten::new_empty")) return;
  GraphNode node{.name = std::string(name), .block = ops::current_block(), .arguments = std::move(arguments)};
  for (const GraphAttribute& argument : node.arguments) {
    if (const auto* one = std::get_if<ValueRef>(&argument)) node.reads.push_back(one->id);
    if (const auto* several = std::get_if<std::vector<ValueRef>>(&argument)) {
      for (const ValueRef& each : *several) node.reads.push_back(each.id);
    }
  }
  const ValueId value = add_value(out);
  node.writes = {value};
  add_node(std::move(node), {Origin::Kind::kLibtorchCall, call});
  write(out, value);
}

void GraphRecorder::add(const ops::Dataflow& dataflow) {
  if (dataflow.name == ops::kProgramInput)
    return add_input(std::string(dataflow.role), dataflow.writes.front());
  GraphNode node{
      .name = std::string(dataflow.name), .role = std::string(dataflow.role), .block = dataflow.block};
  for (const at::Tensor& x : dataflow.reads) node.reads.push_back(read(x));
  for (const auto& [name, value] : dataflow.attributes) node.attributes.emplace_back(name, owned(value));
  for (const at::Tensor& x : dataflow.writes) node.writes.push_back(add_value(x));
  const std::vector<ValueId> writes = node.writes;
  add_node(std::move(node), Origin::operation());
  for (size_t i = 0; i < writes.size(); ++i) write(dataflow.writes[i], writes[i]);
}

void GraphRecorder::add(const comm::CollectiveValues& collective) {
  const std::vector<int64_t>& ranks = collective.group.ranks;
  const auto in_world = [&](int64_t rank) { return rank < 0 ? rank : ranks[static_cast<size_t>(rank)]; };
  GraphNode node{.name = fmt::format("collective.{}", collective.name),
                 .block = ops::current_block(),
                 .collective = {.axis = collective.group.axis,
                                .ranks = ranks,
                                .dim = collective.dim,
                                .parts = {},
                                .to = in_world(collective.to),
                                .from = in_world(collective.from)}};
  for (const Range& part : collective.parts) node.collective.parts.push_back(part.length);
  for (const at::Tensor& x : collective.reads) node.reads.push_back(read(x));
  for (const at::Tensor& x : collective.writes) node.writes.push_back(add_value(x));
  const std::vector<ValueId> writes = node.writes;
  add_node(std::move(node), Origin::collective());
  for (size_t i = 0; i < writes.size(); ++i) write(collective.writes[i], writes[i]);
}

void GraphRecorder::add_node(GraphNode node, Origin origin) {
  graph_.nodes.push_back(std::move(node));
  origins_.resize(graph_.nodes.size());
  origins_.back() = origin;
}

std::pair<Graph, std::vector<Origin>> GraphRecorder::take_all() {
  fill_constants();
  origins_.resize(graph_.nodes.size());
  return {std::move(graph_), std::move(origins_)};
}

void GraphRecorder::fill_constants() {
  std::map<ValueId, const std::string*> contents;
  for (const auto& [key, value] : constants_) contents[value] = &key;
  for (GraphArgument& argument : graph_.arguments) {
    if (argument.kind != GraphArgument::Kind::kConstant) continue;
    const TensorShape& shape = graph_.values[static_cast<size_t>(argument.value)];
    argument.contents = at::empty(shape.sizes, shape.dtype);
    if (argument.contents.numel() == 0) continue;  // there is no data to copy
    std::memcpy(argument.contents.mutable_data_ptr(), contents.at(argument.value)->data(),
                argument.contents.nbytes());
  }
}

void GraphRecorder::begin_later_step() {
  std::set<ValueId> of_step = step_inputs_;
  const auto is_of_step = [&](ValueId value) { return of_step.contains(value); };
  const auto is_empty = [&](ValueId value) {
    const std::vector<int64_t>& sizes = graph_.values[static_cast<size_t>(value)].sizes;
    return std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
  };
  for (const GraphNode& node : graph_.nodes) {
    // A rank that only receives takes the step from the ranks that send.
    const bool only_receives =
        node.name.starts_with("collective.") && std::all_of(node.reads.begin(), node.reads.end(), is_empty);
    if (only_receives || std::any_of(node.reads.begin(), node.reads.end(), is_of_step))
      of_step.insert(node.writes.begin(), node.writes.end());
  }
  first_inputs_ = std::exchange(step_inputs_, {});
  first_results_ = std::exchange(graph_.results, {});
  later_step_ = graph_.nodes.size();
  for (const auto& [address, storage] : storages_) {
    if (of_step.contains(storage.value)) caches_.push_back({address, storage.value});
  }
  std::sort(caches_.begin(), caches_.end(),
            [](const Cache& a, const Cache& b) { return a.before < b.before; });
  for (Cache& each : caches_) {
    const TensorShape type = graph_.values[static_cast<size_t>(each.before)];
    graph_.values.push_back(type);
    each.argument = std::ssize(graph_.values) - 1;
    graph_.arguments.push_back({.kind = GraphArgument::Kind::kCache, .value = each.argument});
    Storage& storage = storages_.at(each.storage);
    storage.value = each.argument;
    storage.views = {{storage.geometry, each.argument}};
  }
}

std::pair<std::vector<size_t>, std::set<ValueId>> GraphRecorder::needed_for(
    const std::vector<GraphResult>& results, const Span& span) const {
  std::set<ValueId> values;
  for (const GraphResult& result : results) values.insert(result.value);
  std::vector<size_t> numbers;
  for (size_t i = span.end; i-- > 0;) {
    const GraphNode& node = graph_.nodes[i];
    const bool is_sent = i >= span.begin && node.name.starts_with("collective.");
    if (!is_sent && std::none_of(node.writes.begin(), node.writes.end(),
                                 [&](ValueId value) { return values.contains(value); }))
      continue;
    values.insert(node.reads.begin(), node.reads.end());
    numbers.push_back(i);
  }
  std::reverse(numbers.begin(), numbers.end());
  return {std::move(numbers), std::move(values)};
}

Graph GraphRecorder::program(std::vector<GraphResult> results, const Span& span,
                             const std::set<ValueId>& without) const {
  const auto [numbers, values] = needed_for(results, span);
  Graph graph;
  graph.values = graph_.values;
  graph.results = std::move(results);
  for (const GraphArgument& argument : graph_.arguments) {
    const bool is_input = argument.kind == GraphArgument::Kind::kInput;
    if (is_input ? !without.contains(argument.value) : values.contains(argument.value))
      graph.arguments.push_back(argument);
  }
  for (const size_t number : numbers) graph.nodes.push_back(graph_.nodes[number]);
  return graph;
}

Graph GraphRecorder::take() {
  fill_constants();
  return program(graph_.results, {0, graph_.nodes.size()}, {});
}

std::pair<Graph, Graph> GraphRecorder::take_steps() {
  fill_constants();
  const Span first{0, later_step_}, later{later_step_, graph_.nodes.size()};
  std::vector<GraphResult> all = graph_.results;  // those of the later step, with all that it leaves
  std::set<ValueId> taken;                        // caches that are taken as arguments
  for (size_t count = 0; count != all.size();) {
    count = all.size();
    const std::set<ValueId> values = needed_for(all, later).second;
    for (const Cache& each : caches_) {
      if (values.contains(each.argument) && taken.insert(each.argument).second)
        all.push_back({.name = {}, .value = storages_.at(each.storage).value});
    }
  }
  std::vector<GraphResult> left = std::move(first_results_), results = graph_.results;
  int64_t number = 0;
  for (const Cache& each : caches_) {
    if (!taken.contains(each.argument)) continue;
    const std::string name = fmt::format("cache.{}", number++);
    std::find_if(graph_.arguments.begin(), graph_.arguments.end(), [&](const GraphArgument& argument) {
      return argument.value == each.argument;
    })->name = name;
    left.push_back({name, each.before});
    if (const ValueId after = storages_.at(each.storage).value; after != each.argument)
      results.push_back({name, after});
  }
  return {program(std::move(left), first, step_inputs_), program(std::move(results), later, first_inputs_)};
}

}  // namespace tessera::plan
