// Records what the current thread computes as a graph.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/collective_values.h"
#include "ops/operation.h"
#include "plan/graph.h"
#include "plan/origin.h"
#include "weights/loading_hook.h"

namespace tessera::plan {

// Records from its construction to its destruction: operations (ops::record_dataflow()), what is called of
// libtorch besides, and weights that are loaded. Tensors are on the meta device; those on the CPU are
// constants, unless they are declared. A thread can have one at a time. It frees no storage's address, so
// that each has one of its own, and holds no memory of tensors.
class GraphRecorder {
 public:
  // Of a trace, messages are those of the run, which may have several dtypes in one (`bitcast`).
  explicit GraphRecorder(bool is_program = true);
  ~GraphRecorder();
  GraphRecorder(const GraphRecorder&) = delete;
  GraphRecorder& operator=(const GraphRecorder&) = delete;

  // Weights that are loaded from here on are of this folder.
  void begin_part(std::string folder) { part_ = std::move(folder); }
  // Declares a tensor as an argument of the program. It may be slices of another one, which ranks share.
  void add_input(const std::string& name, const at::Tensor& x, at::IntArrayRef whole = {},
                 std::vector<weights::Slice> slices = {});
  // The same of what is another in every step.
  void add_step_input(const std::string& name, const at::Tensor& x, at::IntArrayRef whole = {},
                      std::vector<weights::Slice> slices = {});
  // Begins a program of a later step, with inputs and results of its own. What it reads of memory that an
  // earlier step left, as far as that depends on inputs of a step, are caches: arguments `cache.N`, and,
  // where it writes that memory again, results of the same name.
  void begin_later_step();
  // Declares the present value of a tensor as a result, which may be slices of that of all ranks.
  void add_result(const std::string& name, const at::Tensor& x, at::IntArrayRef whole = {},
                  std::vector<weights::Slice> slices = {});
  // What was recorded, without what no result needs.
  Graph take();
  // The program of the first step, which gives all caches that the later one takes, and that of the later
  // one.
  std::pair<Graph, Graph> take_steps();
  // All that was recorded, and what each node was recorded of; those of views and writes are of nothing.
  std::pair<Graph, std::vector<Origin>> take_all();
  // How many nodes were recorded.
  int64_t size() const { return std::ssize(graph_.nodes); }

 private:
  friend struct GraphCall;
  struct Storage {
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> held;
    ValueId value = kNoValue;
    Geometry geometry;  // of the value
    at::ScalarType dtype = at::kFloat;
    std::vector<std::pair<Geometry, ValueId>> views;  // of the value, that were read
  };

  // Memory that an earlier step left.
  struct Cache {
    const void* storage;
    ValueId before, argument = kNoValue;  // what the step left, and what stands for it
  };
  // Nodes, by their numbers.
  struct Span {
    size_t begin, end;
  };

  // The numbers of the nodes before span.end that the results need, in their order, and the values that these
  // read, with the results. Collectives of the span are needed: others may need what a rank sends them.
  std::pair<std::vector<size_t>, std::set<ValueId>> needed_for(const std::vector<GraphResult>& results,
                                                               const Span& span) const;
  // A program of the span, without these inputs.
  Graph program(std::vector<GraphResult> results, const Span& span, const std::set<ValueId>& without) const;

  bool is_known(const at::Tensor& x) const;
  // Whether the value of x depends on an argument.
  bool is_symbolic(const at::Tensor& x) const { return x.is_meta() || is_known(x); }
  ValueId add_value(const at::Tensor& like);
  ValueId read(const at::Tensor& x);
  ValueId constant(const at::Tensor& x);
  void fill_constants();
  // The tensor has this value from now on.
  void write(const at::Tensor& x, ValueId value);
  GraphAttribute attribute_of(const c10::IValue& value);
  void add(const ops::Dataflow& dataflow);
  void add(const comm::CollectiveValues& collective);
  void add_weight(const weights::LoadedWeight& weight);
  void add_call(std::string_view name, std::vector<GraphAttribute> arguments, const at::Tensor& out,
                uint64_t call);
  // Adds what was recorded of something.
  void add_node(GraphNode node, Origin origin);
  // Has the bytes of a storage read as another dtype.
  void reinterpret(Storage& storage, const at::Tensor& as);

  Graph graph_;
  std::vector<Origin> origins_;  // of the first nodes
  std::map<const void*, Storage> storages_;
  std::map<std::string, ValueId> constants_;  // by contents
  std::string part_;
  std::set<ValueId> step_inputs_, first_inputs_;  // of the present step, and of the one before
  std::vector<GraphResult> first_results_;
  std::vector<Cache> caches_;  // in the order of their values
  size_t later_step_ = 0;      // its first node
  int64_t depth_ = 0;          // of calls of libtorch within each other
  ops::ObserveDataflow observe_;
  comm::ObserveCollectiveValues observe_collectives_;
  weights::ObserveLoading observe_loading_;
  uint64_t callback_;
};

}  // namespace tessera::plan
