#include "comm/collective_values.h"

#include <utility>

namespace tessera::comm {
namespace {

thread_local const CollectiveValuesHook* current_hook = nullptr;
thread_local bool has_program = false;
thread_local int64_t depth = 0;
thread_local int64_t begun = 0;  // collectives that are not a part of another one

}  // namespace

ObserveCollectiveValues::ObserveCollectiveValues(CollectiveValuesHook hook, bool is_program)
    : hook_(std::move(hook)),
      before_(std::exchange(current_hook, &hook_)),
      program_before_(std::exchange(has_program, is_program)) {}

ObserveCollectiveValues::~ObserveCollectiveValues() {
  current_hook = before_;
  has_program = program_before_;
}

bool is_for_program() {
  return has_program;
}

CollectiveScope::CollectiveScope() {
  if (depth++ == 0) ++begun;
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

int64_t collective_number() {
  return begun;
}

}  // namespace tessera::comm
