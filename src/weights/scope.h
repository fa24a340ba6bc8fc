// A place in a checkpoint or another source: the prefix of the keys that a layer reads, the dtype and device
// that it wants, and the ranks that it is split over. Layers are built from a Scope and read their tensors by
// the names that the checkpoint uses.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>

#include "comm/group.h"
#include "weights/source.h"

namespace tessera::weights {

// In which form the weights of a part are held, and by whom.
struct Placement {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  comm::TensorGroups groups = {};  // ranks that a layer's weights are split over
};

class Scope {
 public:
  // `source` must outlive the scope (not the tensors).
  Scope(Source& source, const Placement& placement);

  Scope operator/(std::string_view name) const;  // the scope `prefix.name`
  Scope operator/(int64_t index) const;          // the scope `prefix.index`
  Scope with_dtype(at::ScalarType dtype) const;  // the same place, other dtype (fp32 islands)
  // The same place, held whole by every rank where there are more ranks than `units` that a layer can be
  // split into.
  Scope split_at_most(int64_t units) const;

  bool has(std::string_view name) const;  // Source::has()
  // The weight `prefix.name` of the given whole shape, or the part that `slices` leave. Error(kInput) when
  // missing or misshapen.
  at::Tensor tensor(std::string_view name, at::IntArrayRef shape, at::ArrayRef<Slice> slices = {}) const;

  // The weight as it lies in the file, on the CPU: Source::stored().
  at::Tensor stored(std::string_view name, at::IntArrayRef shape) const;

  const std::string& name() const { return prefix_; }  // the prefix of its keys
  at::ScalarType dtype() const { return dtype_; }
  at::Device device() const { return device_; }
  // The ranks that layers are split over; kept as long as someone holds it.
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
