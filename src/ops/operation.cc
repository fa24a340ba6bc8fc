#include "ops/operation.h"

#include <utility>

namespace tessera::ops {
namespace {

thread_local const OperationHook* current_hook = nullptr;
thread_local int64_t current_block = -1;

}  // namespace

ObserveOperations::ObserveOperations(OperationHook hook)
    : hook_(std::move(hook)), before_(std::exchange(current_hook, &hook_)) {}

ObserveOperations::~ObserveOperations() {
  current_hook = before_;
}

InBlock::InBlock(int64_t block) : before_(std::exchange(current_block, block)) {}

InBlock::~InBlock() {
  current_block = before_;
}

void record(std::string_view name, std::string_view role, const at::Tensor& out, int64_t flops,
            std::initializer_list<const at::Tensor*> tensors) {
  if (current_hook == nullptr) return;
  Operation operation{.name = name,
                      .role = role,
                      .block = current_block,
                      .shape = out.sizes().vec(),
                      .dtype = out.scalar_type(),
                      .flops = flops,
                      .bytes = static_cast<int64_t>(out.nbytes())};
  for (const at::Tensor* tensor : tensors) {
    // Counts elements, because a packed weight differs in layout but not in content.
    if (tensor->defined()) operation.bytes += tensor->numel() * static_cast<int64_t>(tensor->element_size());
  }
  (*current_hook)(operation);
}

}  // namespace tessera::ops
