// Measures how much memory loaded weights take, whatever layouts, dtypes or copies the layers make of them.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>

namespace tessera::weights {

// Counts the bytes that tensors of this thread take from the construction of this object on: what libtorch's
// allocators gave out and did not get back, on any device, and live views of mapped weights (even if their
// pages have not been touched yet). Tensors on the meta device count with what they would take. Older tensors
// must not be freed meanwhile. A counter that lives within the life of another one counts for both.
class MemoryCounter {
 public:
  MemoryCounter();
  uint64_t bytes() const;
  // The largest value of bytes() since the last call, or the construction.
  uint64_t take_peak();

  // Reports a new view to the counter of this thread, if there is one; negative `bytes` report its
  // end.
  static void add_view(void* data, int64_t bytes);

 private:
  struct Listener;
  std::shared_ptr<Listener> listener_;
  c10::DebugInfoGuard guard_;
};

}  // namespace tessera::weights
