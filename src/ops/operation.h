// The hook that observes the operations of a network, for whoever counts them. Each operation records what it
// does, on every device alike. On the meta device it records the same and computes nothing, so a recorded run
// and a real one agree operation by operation.
//
// FLOPs are those of the operation, not of the kernel: a product [m, k] x [k, n] has 2 m k n, a convolution
// those of its direct form, and elementwise work a number per element that is documented at each operation.
// Bytes are those of the inputs, weights and outputs, each counted once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::ops {

struct Operation {
  std::string_view name;       // "linear", "attention", ...
  std::string_view role;       // key of its weights in the checkpoint; "" if it has none
  int64_t block = -1;          // block of the denoiser that is running; -1 outside of blocks
  std::vector<int64_t> shape;  // of the result
  at::ScalarType dtype = at::kFloat;
  int64_t flops = 0, bytes = 0;
};

using OperationHook = std::function<void(const Operation&)>;

// Makes `hook` observe the operations of this thread during its lifetime. If nested, only the innermost
// observes.
class ObserveOperations {
 public:
  explicit ObserveOperations(OperationHook hook);
  ~ObserveOperations();
  ObserveOperations(const ObserveOperations&) = delete;
  ObserveOperations& operator=(const ObserveOperations&) = delete;

 private:
  OperationHook hook_;
  const OperationHook* before_;
};

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

// Called by operations: passes the operation to the hook of this thread, if there is one. `tensors` are those
// read and written besides `out`.
void record(std::string_view name, std::string_view role, const at::Tensor& out, int64_t flops,
            std::initializer_list<const at::Tensor*> tensors);

}  // namespace tessera::ops
