// Measures how much memory loaded weights take, including whatever layouts, dtypes or copies the layers make
// of them.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>

namespace tessera::weights {

// Counts the bytes that tensors of this thread take from the construction of this object on: memory from
// libtorch's allocators that has not been freed, on any device, and live views of mapped weights (even if
// their pages have not been touched yet). Tensors on the meta device count with the size that they would
// have. Older tensors must not be freed meanwhile. Bytes seen by a nested counter also count for the outer
// one.
class MemoryCounter {
 public:
  MemoryCounter();
  uint64_t bytes() const;
  // The largest value of bytes() since the last call, or since construction.
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
