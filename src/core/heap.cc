#include "core/heap.h"

#include <algorithm>
#include <cstdlib>  // says whether this is glibc
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace tessera {
namespace {

// The number after `name` in a file of names and numbers, or its first word, where `name` is empty.
std::optional<uint64_t> number_in(const char* path, const std::string& name) {
  std::ifstream file(path);
  uint64_t number = 0;
  for (std::string word; name.empty() || file >> word;) {
    if (!name.empty() && word != name) continue;
    return file >> number ? std::optional(number) : std::nullopt;
  }
  return std::nullopt;
}

bool keeps_freed_memory = false;  // set once, at the begin of a program

}  // namespace

void keep_freed_memory() {
  keeps_freed_memory = true;
#if defined(__GLIBC__)
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

MappedTensors::MappedTensors(bool is_wanted) : is_wanted_(is_wanted && keeps_freed_memory) {
  if (!is_wanted_) return;
#if defined(__GLIBC__)
  constexpr int kMost = 65536,
                kBytes = 32 << 20;  // glibc's own most, and the largest threshold that it takes
  ::mallopt(M_MMAP_THRESHOLD, kBytes);
  ::mallopt(M_MMAP_MAX, kMost);
#endif
  return_freed_memory();
}

MappedTensors::~MappedTensors() {
  if (is_wanted_) keep_freed_memory();
}

void return_freed_memory() {
#if defined(__GLIBC__)
  ::malloc_trim(0);
#endif
}

uint64_t available_memory() {
  uint64_t bytes = std::numeric_limits<int64_t>::max();
  if (const auto kilobytes = number_in("/proc/meminfo", "MemAvailable:")) bytes = *kilobytes * 1024;
  // Pages of files, which count as used there, are given up when memory is short.
  const auto most = number_in("/sys/fs/cgroup/memory.max", ""),
             used = number_in("/sys/fs/cgroup/memory.current", "");
  const auto cached = number_in("/sys/fs/cgroup/memory.stat", "inactive_file");
  if (most && used)
    bytes = std::min(bytes, *most - std::min(*most, *used - std::min(*used, cached.value_or(0))));
  return bytes;
}

}  // namespace tessera
