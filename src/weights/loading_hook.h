// The hook that observes which weights a thread loads, for recording programs.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "weights/source.h"

namespace tessera::weights {

// The references are valid during the call of the hook.
struct LoadedWeight {
  const std::string& key;
  at::IntArrayRef shape;  // of the whole weight
  at::ArrayRef<Slice> slices;
  at::ScalarType stored_dtype;  // in the file; if there is none, that of the tensor
  const at::Tensor& tensor;     // what was loaded, in the requested dtype
};

using LoadingHook = std::function<void(const LoadedWeight&)>;

// Makes the hook observe what this thread loads during its lifetime. If nested, only the innermost observes.
class ObserveLoading {
 public:
  explicit ObserveLoading(LoadingHook hook);
  ~ObserveLoading();
  ObserveLoading(const ObserveLoading&) = delete;
  ObserveLoading& operator=(const ObserveLoading&) = delete;

 private:
  LoadingHook hook_;
  const LoadingHook* before_;
};

// Called by sources after they have loaded a weight.
void record_loading(const LoadedWeight& weight);

}  // namespace tessera::weights
