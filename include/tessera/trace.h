// What a run would do on each rank: operations, messages and memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/engine.h"

namespace tessera {

// Traces a run of the request on `rank`, or on all ranks, using only shapes: no weight is read, and no other
// rank is needed. Returns the JSON text that `tessera trace` writes (docs/trace.md), and that `tessera
// analyze` reads. Without prompts, it traces the longest prompt that the model accepts. Throws Error as
// Engine does.
TESSERA_API std::string trace(const EngineOptions& options, const Request& request,
                              std::optional<int64_t> rank = std::nullopt);

}  // namespace tessera
