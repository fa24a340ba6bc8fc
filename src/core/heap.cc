#include "core/heap.h"

#include <c10/core/CPUAllocator.h>

#include <cstdlib>  // says whether this is glibc
#include <fstream>
#include <limits>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "core/memory_limits.h"
#include "core/tensor_heap.h"

namespace tessera {
namespace {

// Under this policy addresses count as memory from the time they are reserved.
bool never_overcommits() {
  constexpr int kNeverOvercommit = 2;
  std::ifstream file("/proc/sys/vm/overcommit_memory");
  int policy = 0;
  return file >> policy && policy == kNeverOvercommit;
}

}  // namespace

void keep_freed_memory() {
  if (never_overcommits()) return;
  static auto* const tensors = new TensorHeap(total_memory());  // NOLINT: used until the process ends
  c10::SetCPUAllocator(tensors);
#if defined(__GLIBC__)
  // For what is no tensor, such as the scratch memory of oneDNN.
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

}  // namespace tessera
