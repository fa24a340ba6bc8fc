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

// Records from construction to destruction: operations (ops::record_dataflow()), other calls of libtorch, and
// weights that are loaded. Tensors are on the meta device; those on the CPU are constants unless they are
// declared. A thread can have one recorder at a time. Addresses of storages are not reused while it lives, so
// that each storage has its own, but the memory of tensors is not held.
class GraphRecorder {
 public:
  // If false, for a trace: messages are those of the run, which may combine several dtypes (`bitcast`).
  explicit GraphRecorder(bool is_program = true);
  ~GraphRecorder();
  GraphRecorder(const GraphRecorder&) = delete;
  GraphRecorder& operator=(const GraphRecorder&) = delete;

  // Weights that are loaded from now on belong to this folder.
  void begin_part(std::string folder) { part_ = std::move(folder); }
  // Declares a tensor as an argument of the program. It may consist of slices of another tensor, which ranks
  // share.
  void add_input(const std::string& name, const at::Tensor& x, at::IntArrayRef whole = {},
                 std::vector<weights::Slice> slices = {});
  // The same for an argument that changes from step to step.
  void add_step_input(const std::string& name, const at::Tensor& x, at::IntArrayRef whole = {},
                      std::vector<weights::Slice> slices = {});
  // Begins a program of a later step, with its own inputs and results. Memory that an earlier step left, if
  // it depends on inputs of a step, is read as caches: arguments `cache.N`, and, if the step writes that
  // memory again, results of the same name.
  void begin_later_step();
  // Declares the current value of a tensor as a result, which may consist of slices of the result of all
  // ranks.
  void add_result(const std::string& name, const at::Tensor& x, at::IntArrayRef whole = {},
                  std::vector<weights::Slice> slices = {});
  // Returns what was recorded, without anything that the results do not need.
  Graph take();
  // Returns the program of the first step, whose results include all caches that the later one takes, and
  // that of the later step.
  std::pair<Graph, Graph> take_steps();
  // Returns everything that was recorded, and the origin of each node; views and writes have none.
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
    std::vector<std::pair<Geometry, ValueId>> views;  // views of the value that were read
  };

  // Memory that an earlier step left.
  struct Cache {
    const void* storage;
    ValueId before, argument = kNoValue;  // what the step left, and the argument that represents it
  };
  // Nodes, given by their numbers.
  struct Span {
    size_t begin, end;
  };

  // Returns the numbers of the nodes before span.end that the results need, in order, and the values that
  // they read, including the results. All collectives of the span are needed, because other ranks may need
  // what this rank sends them.
  std::pair<std::vector<size_t>, std::set<ValueId>> needed_for(const std::vector<GraphResult>& results,
                                                               const Span& span) const;
  // Returns a program for the span, without these inputs.
  Graph program(std::vector<GraphResult> results, const Span& span, const std::set<ValueId>& without) const;

  bool is_known(const at::Tensor& x) const;
  // Whether the value of x depends on an argument.
  bool is_symbolic(const at::Tensor& x) const { return x.is_meta() || is_known(x); }
  ValueId add_value(const at::Tensor& like);
  ValueId read(const at::Tensor& x);
  ValueId constant(const at::Tensor& x);
  void fill_constants();
  // From now on, the tensor has this value.
  void write(const at::Tensor& x, ValueId value);
  GraphAttribute attribute_of(const c10::IValue& value);
  void add(const ops::Dataflow& dataflow);
  void add(const comm::CollectiveValues& collective);
  void add_weight(const weights::LoadedWeight& weight);
  void add_call(std::string_view name, std::vector<GraphAttribute> arguments, const at::Tensor& out,
                uint64_t call);
  // Adds a node that was recorded from `origin`.
  void add_node(GraphNode node, Origin origin);
  // Makes the bytes of a storage readable as another dtype.
  void reinterpret(Storage& storage, const at::Tensor& as);

  Graph graph_;
  std::vector<Origin> origins_;  // of the first nodes
  std::map<const void*, Storage> storages_;
  std::map<std::string, ValueId> constants_;  // by contents
  std::string part_;
  std::set<ValueId> step_inputs_, first_inputs_;  // of the current step, and of the previous one
  std::vector<GraphResult> first_results_;
  std::vector<Cache> caches_;  // in the order of their values
  size_t later_step_ = 0;      // its first node
  int64_t depth_ = 0;          // the nesting of calls of libtorch
  ops::ObserveDataflow observe_;
  comm::ObserveCollectiveValues observe_collectives_;
  weights::ObserveLoading observe_loading_;
  uint64_t callback_;
};

}  // namespace tessera::plan
