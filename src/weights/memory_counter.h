// How much memory loaded weights take, whatever layout, dtype or copy the layers made of them.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>

namespace tessera::weights {

// Counts in bytes, from its making on, what the tensors of this thread take: what the allocators of libtorch
// gave and did not get back, on any device, and views of mapped weights that still live (also where their
// pages have not been touched yet). Tensors from before must not be freed meanwhile. One at a time per
// thread.
class MemoryCounter {
 public:
  MemoryCounter();
  uint64_t bytes() const;

  // Tells the counter of this thread, if there is one, of a view that begins (or, negative, ends).
  static void add_view(void* data, int64_t bytes);

 private:
  struct Listener;
  std::shared_ptr<Listener> listener_;
  c10::DebugInfoGuard guard_;
};

}  // namespace tessera::weights
