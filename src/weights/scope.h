// A place in a checkpoint: the prefix of the keys that a layer reads, and the dtype and device that it wants.
// Layers are built from a Scope and read their tensors by the names that the checkpoint uses.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

#include "weights/checkpoint.h"

namespace tessera::weights {

class Scope {
 public:
  // `checkpoint` must outlive the scope (not the tensors).
  Scope(Checkpoint& checkpoint, at::ScalarType dtype, at::Device device = at::kCPU);

  Scope operator/(std::string_view name) const;  // the scope `prefix.name`
  Scope operator/(int64_t index) const;          // the scope `prefix.index`
  Scope with_dtype(at::ScalarType dtype) const;  // the same place, other dtype (fp32 islands)

  bool has(std::string_view name) const;
  // The weight `prefix.name` of the given whole shape, or the part that `slices` leave. Error(kInput) when
  // missing or misshapen.
  at::Tensor tensor(std::string_view name, at::IntArrayRef shape, at::ArrayRef<Slice> slices = {}) const;

  // The weight as it lies in the file, on the CPU: Checkpoint::stored().
  at::Tensor stored(std::string_view name, at::IntArrayRef shape) const;

  at::ScalarType dtype() const { return dtype_; }
  at::Device device() const { return device_; }
  const std::string& prefix() const { return prefix_; }

 private:
  std::string key(std::string_view name) const;

  Checkpoint* checkpoint_;
  std::string prefix_;
  at::ScalarType dtype_;
  at::Device device_;
};

}  // namespace tessera::weights
