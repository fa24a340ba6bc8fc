#include "weights/scope.h"

namespace tessera::weights {

Scope::Scope(Source& source, const Placement& placement)
    : source_(&source),
      dtype_(placement.dtype),
      device_(placement.device),
      groups_(std::make_shared<const comm::TensorGroups>(placement.groups)) {}

Scope Scope::operator/(std::string_view name) const {
  Scope scope = *this;
  scope.prefix_ = key(name);
  return scope;
}

Scope Scope::operator/(int64_t index) const {
  return *this / std::string_view(std::to_string(index));
}

Scope Scope::with_dtype(at::ScalarType dtype) const {
  Scope scope = *this;
  scope.dtype_ = dtype;
  return scope;
}

Scope Scope::split_at_most(int64_t units) const {
  if (groups_->size() <= units) return *this;
  Scope scope = *this;
  scope.groups_ = std::make_shared<const comm::TensorGroups>();
  return scope;
}

bool Scope::has(std::string_view name) const {
  return source_->has(key(name));
}

at::Tensor Scope::tensor(std::string_view name, at::IntArrayRef shape, at::ArrayRef<Slice> slices) const {
  return source_->load(key(name), shape, dtype_, slices, device_);
}

at::Tensor Scope::stored(std::string_view name, at::IntArrayRef shape) const {
  return source_->stored(key(name), shape);
}

std::string Scope::key(std::string_view name) const {
  return prefix_.empty() ? std::string(name) : fmt::format("{}.{}", prefix_, name);
}

}  // namespace tessera::weights
