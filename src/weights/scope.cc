#include "weights/scope.h"

namespace tessera::weights {

Scope::Scope(Checkpoint& checkpoint, at::ScalarType dtype, at::Device device)
    : checkpoint_(&checkpoint), dtype_(dtype), device_(device) {}

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

bool Scope::has(std::string_view name) const {
  return checkpoint_->has(key(name));
}

at::Tensor Scope::tensor(std::string_view name, at::IntArrayRef shape, at::ArrayRef<Slice> slices) const {
  return checkpoint_->load(key(name), shape, dtype_, slices, device_);
}

at::Tensor Scope::stored(std::string_view name, at::IntArrayRef shape) const {
  return checkpoint_->stored(key(name), shape);
}

std::string Scope::key(std::string_view name) const {
  return prefix_.empty() ? std::string(name) : fmt::format("{}.{}", prefix_, name);
}

}  // namespace tessera::weights
