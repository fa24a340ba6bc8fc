#include "core/tensor_heap.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>  // defines whether this is glibc
#include <fstream>
#include <limits>
#include <vector>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "core/host.h"

namespace tessera {
namespace {

constexpr size_t kAlignment = 64, kPage = 4096;
// The distance between tensors. Without it, tensors of common sizes begin at the same offset within their
// pages, and the processor mistakes loads from one for loads of what it has just stored to another.
constexpr size_t kStagger = 5 * kAlignment;

size_t round_up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Under this policy, addresses count as memory from the moment they are reserved.
bool never_overcommits() {
  constexpr int kNeverOvercommit = 2;
  std::ifstream file("/proc/sys/vm/overcommit_memory");
  int policy = 0;
  return file >> policy && policy == kNeverOvercommit;
}

}  // namespace

// Lists all heaps of the process, because libtorch may free memory given only its address.
struct TensorHeap::Heaps {
  std::mutex mutex;
  std::vector<TensorHeap*> all;
};

TensorHeap::Heaps& TensorHeap::heaps() {
  static auto* const heaps = new Heaps;  // NOLINT: tensors may live until the process ends
  return *heaps;
}

TensorHeap::TensorHeap(size_t capacity) {
  capacity = capacity / kPage * kPage;
  void* const base =
      ::mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return;  // the address space is limited: libtorch's allocator serves all tensors
  base_ = static_cast<std::byte*>(base);
  capacity_ = capacity;
  free_.emplace(0, capacity);
  Heaps& all = heaps();
  const std::lock_guard lock(all.mutex);
  all.all.push_back(this);
}

TensorHeap::~TensorHeap() {
  if (base_ == nullptr) return;
  {
    Heaps& all = heaps();
    const std::lock_guard lock(all.mutex);
    std::erase(all.all, this);
  }
  ::munmap(base_, capacity_);
}

// Takes the first free range that is long enough, so that tensors stay together at the beginning of the heap.
std::optional<size_t> TensorHeap::take(size_t bytes) {
  const size_t length = round_up(bytes, kAlignment) + kStagger;
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(free_.begin(), free_.end(), [&](const auto& range) { return range.second >= length; });
  if (found == free_.end()) return std::nullopt;
  const auto [begin, free_length] = *found;
  free_.erase(found);
  if (free_length > length) free_.emplace(begin + length, free_length - length);
  used_.emplace(begin, length);
  used_bytes_ += length;
  return begin;
}

void TensorHeap::give_back(size_t begin) {
  const std::lock_guard lock(mutex_);
  const auto used = used_.find(begin);
  size_t length = used->second;
  used_.erase(used);
  used_bytes_ -= length;
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == begin + length) {
    length += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      before->second += length;
      return;
    }
  }
  free_.emplace_hint(next, begin, length);
}

c10::DataPtr TensorHeap::allocate(size_t bytes) {
  const std::optional<size_t> begin = bytes < kLarge ? std::nullopt : take(bytes);
  // If memory has run out, this fails with libtorch's own error.
  if (!begin) return c10::GetDefaultCPUAllocator()->allocate(bytes);
  std::byte* const data = base_ + *begin;
  c10::profiledCPUMemoryReporter().New(data, bytes);
  return {data, data, &TensorHeap::free, at::Device(at::kCPU)};
}

c10::DeleterFnPtr TensorHeap::raw_deleter() const {
  return &TensorHeap::free;
}

void TensorHeap::free(void* data) {
  const auto* const address = static_cast<std::byte*>(data);
  TensorHeap* owner = nullptr;
  {
    Heaps& all = heaps();
    const std::lock_guard lock(all.mutex);
    for (TensorHeap* heap : all.all) {
      if (std::less_equal<>()(heap->base_, address) && std::less<>()(address, heap->base_ + heap->capacity_))
        owner = heap;
    }
  }
  if (owner == nullptr) return c10::GetDefaultCPUAllocator()->raw_deallocate(data);
  c10::profiledCPUMemoryReporter().Delete(data);
  owner->give_back(static_cast<size_t>(address - owner->base_));
}

void TensorHeap::copy_data(void* to, const void* from, size_t bytes) const {
  default_copy_data(to, from, bytes);
}

size_t TensorHeap::used() const {
  const std::lock_guard lock(mutex_);
  return used_bytes_;
}

void keep_freed_memory() {
  if (never_overcommits()) return;
  static auto* const tensors = new TensorHeap(total_memory());  // NOLINT: used until the process ends
  c10::SetCPUAllocator(tensors);
#if defined(__GLIBC__)
  // Keeps memory that does not belong to tensors, such as the scratch memory of oneDNN, in glibc's heap.
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

}  // namespace tessera
