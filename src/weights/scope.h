// A position in a checkpoint or another source: the key prefix of a layer, its dtype and device, and the
// ranks that it is split over. Layers are built from a Scope and read their tensors by the checkpoint's
// names.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>

#include "comm/group.h"
#include "weights/source.h"

namespace tessera::weights {

// The dtype and device of a component's weights, and the ranks that share them.
struct Placement {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  comm::TensorGroups groups = {};  // the ranks that a layer's weights are split over
};

class Scope {
 public:
  // `source` must outlive the scope, but not the tensors.
  Scope(Source& source, const Placement& placement);

  Scope operator/(std::string_view name) const;  // the scope `prefix.name`
  Scope operator/(int64_t index) const;          // the scope `prefix.index`
  Scope with_dtype(at::ScalarType dtype) const;  // the same position with another dtype (fp32 islands)
  // The same position; but each rank holds the whole weights if there are more ranks than `units`, the number
  // of parts that a layer can be split into.
  Scope split_at_most(int64_t units) const;

  bool has(std::string_view name) const;  // see Source::has()
  // Loads the weight `prefix.name` with the given whole shape, or the part that `slices` select. Throws
  // Error(kInput) if it is missing or has another shape.
  at::Tensor tensor(std::string_view name, at::IntArrayRef shape, at::ArrayRef<Slice> slices = {}) const;

  // Loads the weight as stored, on the CPU: see Source::stored().
  at::Tensor stored(std::string_view name, at::IntArrayRef shape) const;

  const std::string& name() const { return prefix_; }  // the key prefix
  at::ScalarType dtype() const { return dtype_; }
  at::Device device() const { return device_; }
  // The ranks that layers are split over. The groups may outlive the scope.
  const std::shared_ptr<const comm::TensorGroups>& groups() const { return groups_; }

 private:
  std::string key(std::string_view name) const;

  Source* source_;
  std::string prefix_;
  at::ScalarType dtype_;
  at::Device device_;
  std::shared_ptr<const comm::TensorGroups> groups_;
};

}  // namespace tessera::weights
