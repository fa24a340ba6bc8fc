// Measures how much memory tensors take.
#pragma once

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace tessera {

// Replaces the allocator of CPU tensors and counts the memory that each thread allocates, whichever thread
// frees it.
class CountingAllocator final : public c10::Allocator {
 public:
  struct Counter {
    std::atomic<int64_t> held = 0, most = 0;
  };

  static CountingAllocator& installed() {
    static CountingAllocator allocator;
    return allocator;
  }
  // Returns this thread's counter; if it is null, the thread's allocations are not counted.
  static std::shared_ptr<Counter>& counter() {
    static thread_local std::shared_ptr<Counter> of_thread;
    return of_thread;
  }

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = inner_->allocate(bytes);
    const std::shared_ptr<Counter> own = counter();
    void* const pointer = data.get();
    if (!own || pointer == nullptr) return data;
    const int64_t held = own->held += static_cast<int64_t>(bytes);
    own->most = std::max<int64_t>(own->most, held);  // only this thread writes it
    const std::lock_guard lock(mutex_);
    counted_.emplace(pointer, Counted{std::move(data), own, static_cast<int64_t>(bytes)});
    return {pointer, pointer, &release, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  struct Counted {
    c10::DataPtr data;
    std::shared_ptr<Counter> counter;
    int64_t bytes;
  };

  static void release(void* pointer) {
    CountingAllocator& self = installed();
    const std::lock_guard lock(self.mutex_);
    const auto found = self.counted_.find(pointer);
    if (found == self.counted_.end()) return self.inner_->raw_deleter()(pointer);
    found->second.counter->held -= found->second.bytes;
    self.counted_.erase(found);
  }

  CountingAllocator() : inner_(c10::GetCPUAllocator()) {
    c10::SetCPUAllocator(this, /*priority=*/std::numeric_limits<uint8_t>::max());
  }

  c10::Allocator* inner_;
  std::mutex mutex_;
  std::map<void*, Counted> counted_;
};

// Returns the peak number of bytes of the tensors that `work` allocates on this thread.
inline int64_t peak_bytes(const std::function<void()>& work) {
  CountingAllocator::installed();
  const auto counter = CountingAllocator::counter() = std::make_shared<CountingAllocator::Counter>();
  work();
  CountingAllocator::counter().reset();
  return counter->most;
}

}  // namespace tessera
