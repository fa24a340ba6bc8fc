#include "core/heap.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdlib>  // says whether this is glibc
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "core/tensor_heap.h"

namespace tessera {
namespace {

// Returns the number after `name` in a file of names and numbers, or the first number if `name` is empty.
std::optional<uint64_t> number_in(const char* path, const std::string& name) {
  std::ifstream file(path);
  uint64_t number = 0;
  for (std::string word; name.empty() || file >> word;) {
    if (!name.empty() && word != name) continue;
    return file >> number ? std::optional(number) : std::nullopt;
  }
  return std::nullopt;
}

// The control group of this process, relative to the mount point.
std::filesystem::path control_group() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) return line.substr(4);
  }
  return {};
}

}  // namespace

void keep_freed_memory() {
  // Under this policy addresses count as memory from the time they are reserved.
  constexpr uint64_t kNeverOvercommit = 2;
  if (number_in("/proc/sys/vm/overcommit_memory", "") == kNeverOvercommit) return;
  static auto* const tensors = new TensorHeap(total_memory());  // NOLINT: used until the process ends
  c10::SetCPUAllocator(tensors);
#if defined(__GLIBC__)
  // For what is no tensor, such as the scratch memory of oneDNN.
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

uint64_t total_memory() {
  uint64_t bytes = std::numeric_limits<int64_t>::max();
  if (const auto kilobytes = number_in("/proc/meminfo", "MemTotal:")) bytes = *kilobytes * 1024;
  // A nested group also has the limits of all groups around it.
  const std::filesystem::path mount = "/sys/fs/cgroup";
  for (std::filesystem::path group = control_group();; group = group.parent_path()) {
    bytes = std::min(bytes, number_in((mount / group / "memory.max").c_str(), "").value_or(bytes));
    if (group.empty()) return bytes;
  }
}

}  // namespace tessera
