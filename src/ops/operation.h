// What the operations of a network are to who counts them: each tells one hook what it does and for whom, on
// every device alike. On the meta device it tells the same and computes nothing, so a run that is only
// recorded and a real one agree operation by operation.
//
// FLOPs are those of the operation, not of the kernel: a product of [m, k] x [k, n] has 2 m k n, a
// convolution those of its direct form, elementwise work a number per element that stands beside each
// operation. Bytes are those of its inputs, weights and outputs, each once.
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
  std::string_view role;       // place of its weights in the checkpoint, "" where it has none
  int64_t block = -1;          // of the denoiser under way; -1 outside of blocks
  std::vector<int64_t> shape;  // of what it gives
  at::ScalarType dtype = at::kFloat;
  int64_t flops = 0, bytes = 0;
};

using OperationHook = std::function<void(const Operation&)>;

// From its making to its end, `hook` sees the operations of this thread. They nest: the inner one sees alone.
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

// The block that the operations of this thread are of, until its end.
class InBlock {
 public:
  explicit InBlock(int64_t block);
  ~InBlock();
  InBlock(const InBlock&) = delete;
  InBlock& operator=(const InBlock&) = delete;

 private:
  int64_t before_;
};

// For operations: tells the hook of this thread, if there is one. `tensors`: what is read and written beside
// `out`.
void record(std::string_view name, std::string_view role, const at::Tensor& out, int64_t flops,
            std::initializer_list<const at::Tensor*> tensors);

}  // namespace tessera::ops
