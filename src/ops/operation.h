// The hook that observes the operations of a network, for example to count them. Each operation records what
// it does, in the same way on every device. On the meta device it records the same without computing, so a
// recorded run and a real one agree operation by operation.
//
// FLOPs are those of the operation, not of the kernel: a product [m, k] x [k, n] has 2 m k n, a convolution
// those of its direct form, and elementwise work a number per element that is documented at each operation.
// Bytes are those of the inputs, weights and outputs, each counted once.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::ops {

// A tensor that an operation reads or writes. It refers to its shape.
struct Operand {
  Operand() = default;
  Operand(const at::Tensor& x);  // NOLINT(google-explicit-constructor): record() is given tensors
  // For tensors whose layout differs from their meaning, such as packed weights.
  Operand(at::IntArrayRef sizes, at::ScalarType type) : shape(sizes), dtype(type) {}
  int64_t bytes() const {
    return c10::multiply_integers(shape) * static_cast<int64_t>(c10::elementSize(dtype));
  }

  bool is_defined = true;
  at::IntArrayRef shape;
  at::ScalarType dtype = at::kFloat;
};

// The views are valid during the call of the hook.
struct Operation {
  std::string_view name;  // "linear", "attention", ...
  std::string_view role;  // key of its weights in the checkpoint; "" if it has none
  int64_t block = -1;     // block of the denoiser that is running; -1 outside of blocks
  Operand output;
  std::vector<Operand> inputs;  // the defined ones, including weights
  int64_t flops = 0, bytes = 0;
};

// What determines an operation's result besides its inputs.
using Attribute = std::variant<bool, int64_t, double, std::string_view>;

// An operation as the values that it reads and writes, for recording programs. Costs are recorded separately,
// because one operation there may be several here, and vice versa.
struct Dataflow {
  std::string_view name, role;
  // In the order in which record_dataflow() gets them; undefined for operands that the operation leaves out.
  std::vector<at::Tensor> reads;
  // These are written entirely. A tensor that is also read gets a new value.
  std::vector<at::Tensor> writes;
  std::vector<std::pair<std::string_view, Attribute>> attributes = {};
  int64_t block = -1;
};

// The name of a Dataflow that computes nothing: the values that it writes are inputs of the program with the
// name `role`.
inline constexpr std::string_view kProgramInput = "input";

using OperationHook = std::function<void(const Operation&)>;
using DataflowHook = std::function<void(const Dataflow&)>;
// Called when an OperationScope begins and when it ends, to measure how long operations take.
using ScopeHook = std::function<void(bool begins)>;

// Makes the hooks observe the operations of this thread during its lifetime. If nested, only the innermost
// observes.
class ObserveOperations {
 public:
  explicit ObserveOperations(OperationHook hook, ScopeHook scope_hook = {});
  ~ObserveOperations();
  ObserveOperations(const ObserveOperations&) = delete;
  ObserveOperations& operator=(const ObserveOperations&) = delete;

 private:
  OperationHook hook_;
  ScopeHook scope_hook_;
  const OperationHook* before_;
  const ScopeHook* scope_before_;
};

// The same for the values of operations.
class ObserveDataflow {
 public:
  explicit ObserveDataflow(DataflowHook hook);
  ~ObserveDataflow();
  ObserveDataflow(const ObserveDataflow&) = delete;
  ObserveDataflow& operator=(const ObserveDataflow&) = delete;

 private:
  DataflowHook hook_;
  const DataflowHook* before_;
};

// Lives while an operation computes: its calls of libtorch belong to it, and record() reports the work as a
// whole. The operation is recorded before the scope ends.
class OperationScope {
 public:
  OperationScope();
  ~OperationScope();
  OperationScope(const OperationScope&) = delete;
  OperationScope& operator=(const OperationScope&) = delete;
};
// Whether an operation of this thread is computing.
bool is_in_operation();
// How many operations of this thread that are not part of another one have begun: whatever is recorded while
// one computes has its number.
int64_t operation_number();
// The block to which this thread's operations are attributed; -1 outside of blocks.
int64_t current_block();

// Attributes the operations of this thread to `block` during its lifetime.
class InBlock {
 public:
  explicit InBlock(int64_t block);
  ~InBlock();
  InBlock(const InBlock&) = delete;
  InBlock& operator=(const InBlock&) = delete;

 private:
  int64_t before_;
};

// Called by operations when they are done: passes the operation to the hook of this thread, if there is one.
// `inputs` are the tensors that it has read besides `out`; some may be undefined.
void record(std::string_view name, std::string_view role, const at::Tensor& out, int64_t flops,
            std::initializer_list<Operand> inputs);
// For work that is done on each element of `out` before it is written, and moves no data of its own.
void record_fused(std::string_view name, std::string_view role, const at::Tensor& out, int64_t flops);

// Called by operations when they are done: passes what make() returns, a Dataflow without its block, to the
// hook of this thread, if there is one.
bool observes_dataflow();
void pass_dataflow(Dataflow dataflow);
template <typename Make>
void record_dataflow(const Make& make) {
  if (observes_dataflow()) pass_dataflow(make());
}

}  // namespace tessera::ops
