#include "core/heap.h"

#include <algorithm>
#include <cstdlib>  // says whether this is glibc
#include <filesystem>
#include <fstream>
#include <limits>
#include <mutex>
#include <optional>
#include <string>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

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

bool keeps_freed_memory = false;  // set once, when a program starts
std::mutex mutex;
int mapping = 0;  // the number of live MappedTensors that are wanted

void keep_all() {
#if defined(__GLIBC__)
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
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
  keeps_freed_memory = true;
  keep_all();
}

MappedTensors::MappedTensors(bool is_wanted) : is_wanted_(is_wanted && keeps_freed_memory) {
  if (!is_wanted_) return;
  const std::lock_guard lock(mutex);
  ++mapping;
#if defined(__GLIBC__)
  constexpr int kMost = 65536,
                kBytes = 32 << 20;  // glibc's default maximum, and its largest threshold
  ::mallopt(M_MMAP_THRESHOLD, kBytes);
  ::mallopt(M_MMAP_MAX, kMost);
#endif
  return_freed_memory();
}

MappedTensors::~MappedTensors() {
  if (!is_wanted_) return;
  const std::lock_guard lock(mutex);
  if (--mapping == 0) keep_all();
}

void return_freed_memory() {
#if defined(__GLIBC__)
  ::malloc_trim(0);
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
