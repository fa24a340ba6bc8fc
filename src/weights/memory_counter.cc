#include "weights/memory_counter.h"

#include <c10/core/Allocator.h>

#include <algorithm>

namespace tessera::weights {

// libtorch's allocators report to the memory profiler of the thread; this one only adds up sizes.
struct MemoryCounter::Listener : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void* /*data*/, int64_t size, size_t /*allocated*/, size_t /*reserved*/,
                         c10::Device /*device*/) override {
    bytes += size;
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t bytes = 0;
};

MemoryCounter::MemoryCounter()
    : listener_(std::make_shared<Listener>()), guard_(c10::DebugInfoKind::PROFILER_STATE, listener_) {}

uint64_t MemoryCounter::bytes() const {
  return static_cast<uint64_t>(std::max<int64_t>(listener_->bytes, 0));
}

void MemoryCounter::add_view(void* data, int64_t bytes) {
  c10::reportMemoryUsageToProfiler(data, bytes, 0, 0, at::kCPU);
}

}  // namespace tessera::weights
