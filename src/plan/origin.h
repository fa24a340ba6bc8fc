// What two recorders of one thread both see; it connects an event of a trace with its node in a graph.
#pragma once

#include <cstdint>

#include "comm/collective_values.h"
#include "ops/operation.h"

namespace tessera::plan {

// What an event or a node was recorded from. Numbers count within a thread.
struct Origin {
  enum class Kind { kNone, kLibtorchCall, kOperation, kCollective };
  Kind kind = Kind::kNone;
  uint64_t number = 0;
  auto operator<=>(const Origin&) const = default;

  // The operation that is computing, and the collective that is being posted.
  static Origin operation() {
    return ops::is_in_operation() ? Origin{Kind::kOperation, static_cast<uint64_t>(ops::operation_number())}
                                  : Origin();
  }
  static Origin collective() {
    return comm::is_in_collective()
               ? Origin{Kind::kCollective, static_cast<uint64_t>(comm::collective_number())}
               : Origin();
  }
};

}  // namespace tessera::plan
