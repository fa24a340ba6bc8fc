// Stands in for libtorch's header of this name, which every header of an operator includes. That one defines
// device_of for lists of tensors too, for which it needs TorchScript's values (ATen/core/ivalue.h). GCC
// instantiates their templates again in every source, precompiled or not: 1.7 s of the 3.9 s that a source
// takes which includes nothing else.
//
// at::cat takes such a list. at::concat, its alias, takes an ArrayRef, and compiles without those headers.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

namespace at {

inline std::optional<Device> device_of(const Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor.device()) : std::nullopt;
}

inline std::optional<Device> device_of(const std::optional<Tensor>& tensor) {
  return tensor ? device_of(*tensor) : std::nullopt;
}

}  // namespace at
