// How much memory a run needs, from shapes alone (plan/trace_model.h).
#pragma once

#include <cstdint>

#include "engine/model.h"
#include "engine/request.h"
#include "parallel/layout.h"
#include "plan/trace.h"

namespace tessera::plan {

// The largest number of bytes that the weights and other tensors of all ranks take together in a phase. It
// includes neither the program itself nor the encoding of prompts, which reads weights when they are needed.
struct MemoryNeed {
  int64_t denoise = 0, decode = 0;

  int64_t most() const { return denoise > decode ? denoise : decode; }
};

// Throws as loading does.
MemoryNeed memory_need(const engine::Settings& settings, const engine::Model& model,
                       const parallel::Layout& layout);

}  // namespace tessera::plan
