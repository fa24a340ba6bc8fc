#include "weights/loading_hook.h"

#include <utility>

namespace tessera::weights {
namespace {

thread_local const LoadingHook* current_hook = nullptr;

}  // namespace

ObserveLoading::ObserveLoading(LoadingHook hook)
    : hook_(std::move(hook)), before_(std::exchange(current_hook, &hook_)) {}

ObserveLoading::~ObserveLoading() {
  current_hook = before_;
}

void record_loading(const LoadedWeight& weight) {
  if (current_hook != nullptr) (*current_hook)(weight);
}

}  // namespace tessera::weights
