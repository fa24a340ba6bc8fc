#include "ops/operation.h"

#include <utility>

namespace tessera::ops {
namespace {

thread_local const OperationHook* current_hook = nullptr;
thread_local const ScopeHook* current_scope_hook = nullptr;
thread_local const DataflowHook* current_dataflow_hook = nullptr;
thread_local int64_t block_number = -1;
thread_local int64_t depth = 0;  // the nesting of operations that compute
thread_local int64_t begun = 0;  // operations that are not part of another one

}  // namespace

Operand::Operand(const at::Tensor& x) : is_defined(x.defined()) {
  if (!is_defined) return;
  shape = x.sizes();
  dtype = x.scalar_type();
}

ObserveOperations::ObserveOperations(OperationHook hook, ScopeHook scope_hook)
    : hook_(std::move(hook)),
      scope_hook_(std::move(scope_hook)),
      before_(std::exchange(current_hook, &hook_)),
      scope_before_(std::exchange(current_scope_hook, scope_hook_ ? &scope_hook_ : nullptr)) {}

ObserveOperations::~ObserveOperations() {
  current_hook = before_;
  current_scope_hook = scope_before_;
}

ObserveDataflow::ObserveDataflow(DataflowHook hook)
    : hook_(std::move(hook)), before_(std::exchange(current_dataflow_hook, &hook_)) {}

ObserveDataflow::~ObserveDataflow() {
  current_dataflow_hook = before_;
}

bool observes_dataflow() {
  return current_dataflow_hook != nullptr;
}

void pass_dataflow(Dataflow dataflow) {
  dataflow.block = block_number;
  (*current_dataflow_hook)(dataflow);
}

OperationScope::OperationScope() {
  if (depth++ == 0) ++begun;
  if (current_scope_hook != nullptr) (*current_scope_hook)(/*begins=*/true);
}

OperationScope::~OperationScope() {
  if (current_scope_hook != nullptr) (*current_scope_hook)(/*begins=*/false);
  --depth;
}

bool is_in_operation() {
  return depth > 0;
}

InBlock::InBlock(int64_t block) : before_(std::exchange(block_number, block)) {}

InBlock::~InBlock() {
  block_number = before_;
}

int64_t operation_number() {
  return begun;
}

int64_t current_block() {
  return block_number;
}

void record(std::string_view name, std::string_view role, const at::Tensor& out, int64_t flops,
            std::initializer_list<Operand> inputs) {
  if (current_hook == nullptr) return;
  Operation operation{.name = name,
                      .role = role,
                      .block = block_number,
                      .output = out,
                      .inputs = {},
                      .flops = flops,
                      .bytes = static_cast<int64_t>(out.nbytes())};
  for (const Operand& input : inputs) {
    if (!input.is_defined) continue;
    operation.inputs.push_back(input);
    operation.bytes += input.bytes();
  }
  (*current_hook)(operation);
}

void record_fused(std::string_view name, std::string_view role, const at::Tensor& out, int64_t flops) {
  if (current_hook == nullptr) return;
  (*current_hook)(
      {.name = name, .role = role, .block = block_number, .output = out, .inputs = {}, .flops = flops});
}

}  // namespace tessera::ops
