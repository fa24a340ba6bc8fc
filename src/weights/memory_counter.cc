#include "weights/memory_counter.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

namespace tessera::weights {
namespace {

// Provides no memory, like libtorch's own allocator for the meta device, but reports sizes as allocators of
// other devices do.
class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (!c10::memoryProfilingEnabled()) return {nullptr, nullptr, raw_deleter(), at::kMeta};
    report(static_cast<int64_t>(bytes));
    return {nullptr, new int64_t(static_cast<int64_t>(bytes)), raw_deleter(), at::kMeta};
  }
  c10::DeleterFnPtr raw_deleter() const override { return give_back; }
  void copy_data(void* /*to*/, const void* /*from*/, size_t /*bytes*/) const override {}

 private:
  static void report(int64_t bytes) { c10::reportMemoryUsageToProfiler(nullptr, bytes, 0, 0, at::kMeta); }
  static void give_back(void* context) {
    const std::unique_ptr<int64_t> bytes(static_cast<int64_t*>(context));
    if (bytes) report(-*bytes);
  }
};

void use_meta_allocator() {
  static MetaAllocator allocator;
  static std::once_flag flag;
  std::call_once(flag, [] { c10::SetAllocator(at::kMeta, &allocator); });
}

}  // namespace

// libtorch's allocators report to the memory profiler of the thread; this one only adds up sizes.
struct MemoryCounter::Listener : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void* data, int64_t size, size_t allocated, size_t reserved,
                         c10::Device device) override {
    if (outer != nullptr) outer->reportMemoryUsage(data, size, allocated, reserved, device);
    bytes += size;
    peak = std::max(peak, bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }

  c10::MemoryReportingInfoBase* outer = static_cast<c10::MemoryReportingInfoBase*>(
      c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE));
  int64_t bytes = 0, peak = 0;
};

MemoryCounter::MemoryCounter()
    : listener_(std::make_shared<Listener>()), guard_(c10::DebugInfoKind::PROFILER_STATE, listener_) {
  use_meta_allocator();
}

uint64_t MemoryCounter::bytes() const {
  return static_cast<uint64_t>(std::max<int64_t>(listener_->bytes, 0));
}

uint64_t MemoryCounter::take_peak() {
  return static_cast<uint64_t>(std::max<int64_t>(std::exchange(listener_->peak, listener_->bytes), 0));
}

void MemoryCounter::add_view(void* data, int64_t bytes) {
  c10::reportMemoryUsageToProfiler(data, bytes, 0, 0, at::kCPU);
}

}  // namespace tessera::weights
