#include "comm/collective_values.h"

#include <utility>

namespace tessera::comm {
namespace {

thread_local const CollectiveValuesHook* current_hook = nullptr;
thread_local int64_t depth = 0;

}  // namespace

ObserveCollectiveValues::ObserveCollectiveValues(CollectiveValuesHook hook)
    : hook_(std::move(hook)), before_(std::exchange(current_hook, &hook_)) {}

ObserveCollectiveValues::~ObserveCollectiveValues() {
  current_hook = before_;
}

bool observes_collective_values() {
  return current_hook != nullptr;
}

CollectiveScope::CollectiveScope() {
  ++depth;
}

CollectiveScope::~CollectiveScope() {
  --depth;
}

void CollectiveScope::record(const CollectiveValues& values) const {
  if (current_hook != nullptr && depth == 1) (*current_hook)(values);
}

bool is_in_collective() {
  return depth > 0;
}

}  // namespace tessera::comm
