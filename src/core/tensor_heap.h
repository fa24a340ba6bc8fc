// How this process takes memory from the system and returns it: an allocator for the tensors of the CPU.
// Large ones share a heap of their own, which keeps freed memory for the tensors that follow.
//
// glibc maps and unmaps tensors above 32 MiB one by one, and the kernel zeroes and maps their pages each
// time. If they lie in glibc's heap instead, small allocations that outlive them end up between them, so that
// a piece that was freed often does not fit the next tensor of its size.
#pragma once

#include <c10/core/Allocator.h>

#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace tessera {

// Threads may use it at the same time.
class TensorHeap final : public c10::Allocator {
 public:
  // Smaller tensors, and those for which the heap has no room, come from libtorch's own allocator.
  static constexpr size_t kLarge = 1 << 20;

  // Reserves `capacity` bytes of addresses. Their pages take memory only once they are touched.
  explicit TensorHeap(size_t capacity);
  ~TensorHeap() override;
  TensorHeap(const TensorHeap&) = delete;
  TensorHeap& operator=(const TensorHeap&) = delete;

  // Returns memory at a multiple of 64 bytes. The heap must outlive it.
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, size_t bytes) const override;

  size_t used() const;  // bytes of large tensors

 private:
  struct Heaps;

  static Heaps& heaps();
  static void free(void* data);
  std::optional<size_t> take(size_t bytes);
  void give_back(size_t begin);

  std::byte* base_ = nullptr;
  size_t capacity_ = 0;
  mutable std::mutex mutex_;
  std::map<size_t, size_t> free_;            // lengths of the free ranges by offset; adjacent ones are merged
  std::unordered_map<size_t, size_t> used_;  // lengths of tensors by offset
  size_t used_bytes_ = 0;
};

// From now on, the process keeps freed memory for the next tensors: see TensorHeap. Meant for programs, at
// their start, before there are tensors. Does nothing if the system never promises more memory than it has.
void keep_freed_memory();

}  // namespace tessera
