#include "plan/stablehlo_by_rank.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/error.h"
#include "plan/stablehlo_collectives.h"
#include "plan/stablehlo_lowering.h"

namespace tessera::plan {
namespace {

// A place for one value of each rank; all of them have the same type in the program.
struct Slot {
  TensorShape type;
  std::vector<ValueId> values;  // by rank
};

// Extends a type to hold another one.
void extend(TensorShape& type, const TensorShape& other) {
  for (size_t i = 0; i < type.sizes.size(); ++i) type.sizes[i] = std::max(type.sizes[i], other.sizes[i]);
}

// Values with the same dtype and number of dimensions share places.
std::vector<Slot> slots_of(std::span<const Graph> ranks, const std::vector<std::vector<ValueId>>& live) {
  std::map<std::pair<at::ScalarType, size_t>, std::vector<Slot>> by_form;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    std::map<std::pair<at::ScalarType, size_t>, size_t> used;
    for (const ValueId value : live[rank]) {
      const TensorShape& type = ranks[rank].values[static_cast<size_t>(value)];
      const std::pair form(type.dtype, type.sizes.size());
      std::vector<Slot>& slots = by_form[form];
      const size_t place = used[form]++;
      if (place == slots.size()) slots.push_back({type, std::vector<ValueId>(ranks.size(), kNoValue)});
      Slot& slot = slots[place];
      slot.values[rank] = value;
      extend(slot.type, type);
    }
  }
  std::vector<Slot> all;
  for (auto& [form, slots] : by_form) std::move(slots.begin(), slots.end(), std::back_inserter(all));
  return all;
}

// The program of one rank.
class RankProgram {
 public:
  RankProgram(const Graph& graph, MlirBuilder& builder)
      : graph_(graph), lowering_(std::span(&graph, 1), builder), last_use_(graph.values.size(), -1) {
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      for (const ValueId value : graph.nodes[i].reads) use(value, static_cast<int64_t>(i));
    }
    for (const GraphResult& result : graph.results) use(result.value, std::ssize(graph.nodes));
  }

  Lowering& lowering() { return lowering_; }
  // The next collective; null after the last one.
  const GraphNode* collective() const { return next_ < graph_.nodes.size() ? &graph_.nodes[next_] : nullptr; }
  // Everything written from now on is part of it.
  void begin_collective() { lowering_.begin(next_); }
  NodeLocation location() const { return lowering_.location_of(next_); }

  // Begins a branch after it, which has what it writes.
  void pass_collective() { fresh_ = graph_.nodes[next_++].writes; }
  // Lowers everything before the next collective.
  void advance() {
    for (; next_ < graph_.nodes.size() && !is_collective(graph_.nodes[next_]); ++next_) {
      lowering_.lower(next_);
      const std::vector<ValueId>& writes = graph_.nodes[next_].writes;
      fresh_.insert(fresh_.end(), writes.begin(), writes.end());
    }
  }
  // The values of this branch that are read after the next collective.
  std::vector<ValueId> live() const {
    std::vector<ValueId> values;
    std::copy_if(fresh_.begin(), fresh_.end(), std::back_inserter(values), [&](ValueId value) {
      return last_use_[static_cast<size_t>(value)] > static_cast<int64_t>(next_);
    });
    return values;
  }

 private:
  void use(ValueId value, int64_t node) {
    if (value != kNoValue) last_use_[static_cast<size_t>(value)] = node;
  }

  const Graph& graph_;
  Lowering lowering_;
  size_t next_ = 0;
  std::vector<int64_t> last_use_;  // the number of a node, by value
  std::vector<ValueId> fresh_;     // those of the current branch
};

MlirValue in_slot(MlirBuilder& b, const MlirValue& x, const TensorShape& type) {
  Sizes64 behind = type.sizes;
  for (size_t i = 0; i < behind.size(); ++i) behind[i] -= x.sizes()[i];
  return b.in_node(between_branches(), [&] { return b.pad(x, Sizes64(behind.size()), behind); });
}

class Interleaving {
 public:
  Interleaving(std::span<const Graph> ranks, MlirBuilder& builder)
      : ranks_(ranks), builder_(builder), index_(builder.partition()) {
    for (const Graph& each : ranks) programs_.emplace_back(each, builder);
  }

  void hold_arguments(const SharedArguments& shared, const std::vector<MlirValue>& arguments);
  std::vector<MlirValue> run();

 private:
  // The collective that all ranks reach next; nothing after the last one.
  std::optional<CollectiveCall> next_collective() const;
  // Writes what the ranks do after a collective, whose results they have received, up to the next one.
  // Returns what they pass to that one, or the results.
  std::vector<MlirValue> run_branches(std::optional<CollectiveCall> before,
                                      const std::vector<MlirValue>& received);
  std::vector<Slot> slots_of_results() const;

  std::span<const Graph> ranks_;
  MlirBuilder& builder_;
  MlirValue index_;  // the rank
  std::vector<RankProgram> programs_;
};

void Interleaving::hold_arguments(const SharedArguments& shared, const std::vector<MlirValue>& arguments) {
  std::map<std::string, MlirValue> constants;  // by contents
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    size_t next = 0;
    for (const GraphArgument& argument : shared.of_ranks[rank]) {
      const bool is_constant = argument.kind == GraphArgument::Kind::kConstant;
      const MlirValue* around = is_constant ? nullptr : &arguments.at(next++);
      if (argument.value == kNoValue) continue;
      if (is_constant) {
        const at::Tensor& x = argument.contents;
        std::string key(static_cast<const char*>(x.const_data_ptr()), x.nbytes());
        key += mlir_type({x.sizes().vec(), x.scalar_type()});
        auto found = constants.find(key);
        if (found == constants.end()) found = constants.emplace(std::move(key), builder_.constant(x)).first;
        around = &found->second;
      }
      programs_[rank].lowering().hold(argument.value, *around);
    }
  }
}

std::optional<CollectiveCall> Interleaving::next_collective() const {
  CollectiveCall call{.graphs = ranks_, .nodes = {}};
  for (const RankProgram& each : programs_) call.nodes.push_back(each.collective());
  const GraphNode* const first = call.nodes.front();
  const auto fits = [&](const GraphNode* node) {
    if (node == nullptr || first == nullptr) return node == first;
    return node->name == first->name && node->reads.size() == first->reads.size() &&
           node->collective.ranks.size() == first->collective.ranks.size();
  };
  if (!std::all_of(call.nodes.begin(), call.nodes.end(), fits))
    throw Error(
        ErrorKind::kUsage, field("stablehlo"),
        "the ranks do not send each other messages of the same kinds in the same order, for which there "
        "is no program");
  if (first == nullptr) return std::nullopt;
  return call;
}

std::vector<Slot> Interleaving::slots_of_results() const {
  const SharedResults shared = share_results(ranks_);
  std::vector<Slot> slots;
  for (size_t i = 0; i < shared.shapes.size(); ++i) {
    slots.push_back({shared.shapes[i], {}});
    for (const std::vector<GraphResult>& own : shared.of_ranks) slots.back().values.push_back(own[i].value);
  }
  return slots;
}

std::vector<MlirValue> Interleaving::run_branches(std::optional<CollectiveCall> before,
                                                  const std::vector<MlirValue>& received) {
  std::vector<MlirBuilder> regions(ranks_.size(), builder_.region());
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    Lowering& lowering = programs_[rank].lowering();
    lowering.enter(regions[rank]);
    if (before) {
      before->rank = rank;
      programs_[rank].begin_collective();
      std::vector<MlirValue> seen;
      for (const MlirValue& each : received) seen.push_back(regions[rank].outer(each));
      collective_rule(before->node()).unpack(lowering, *before, seen);
      programs_[rank].pass_collective();
    }
    programs_[rank].advance();
  }
  std::optional<CollectiveCall> next = next_collective();
  std::vector<std::vector<MlirValue>> given(ranks_.size());
  std::vector<std::vector<ValueId>> live;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    live.push_back(programs_[rank].live());
    if (!next) continue;
    next->rank = rank;
    programs_[rank].begin_collective();
    given[rank] = collective_rule(next->node()).pack(programs_[rank].lowering(), *next);
  }
  const size_t count = given.front().size();
  const std::vector<Slot> slots = next ? slots_of(ranks_, live) : slots_of_results();
  for (const Slot& slot : slots) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const ValueId value = slot.values[rank];
      given[rank].push_back(value == kNoValue
                                ? regions[rank].filled(0, slot.type)
                                : in_slot(regions[rank], programs_[rank].lowering().value(value), slot.type));
    }
  }
  builder_.begin_node(between_branches());
  std::vector<MlirValue> results = builder_.branches(index_, regions, given);
  if (!next) return results;
  for (size_t i = 0; i < slots.size(); ++i) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const ValueId value = slots[i].values[rank];
      if (value != kNoValue) programs_[rank].lowering().hold(value, results[count + i]);
    }
  }
  results.resize(count);
  return results;
}

std::vector<MlirValue> Interleaving::run() {
  std::vector<MlirValue> values = run_branches(std::nullopt, {});
  while (const std::optional<CollectiveCall> call = next_collective()) {
    builder_.begin_node(programs_.front().location());
    for (MlirValue& each : values) each = collective_rule(call->node()).exchange(builder_, *call, each);
    values = run_branches(call, values);
  }
  return values;
}

}  // namespace

std::vector<MlirValue> lower_by_rank(std::span<const Graph> ranks, const SharedArguments& shared,
                                     const std::vector<MlirValue>& arguments, MlirBuilder& builder) {
  Interleaving interleaving(ranks, builder);
  interleaving.hold_arguments(shared, arguments);
  return interleaving.run();
}

}  // namespace tessera::plan
