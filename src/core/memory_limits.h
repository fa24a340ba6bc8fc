// What limits the memory of the processes of a host together: the machine, and control groups of either
// version. The kernel ends a process that goes beyond them. Limits of one process (ulimit) are not here: they
// make an allocation fail, which is an error like others.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

namespace tessera {

inline constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

struct MemoryLimit {
  std::string name;                 // "the machine", "the control group /user"
  uint64_t most = kUnlimited;       // bytes that cannot be exceeded, swap included
  uint64_t available = kUnlimited;  // bytes that are free now, or can be freed without loss
};

// Returns all limits that are set. `root` is the folder with /proc and /sys, for tests.
std::vector<MemoryLimit> memory_limits(const std::filesystem::path& root = "/");

// Returns the memory of the machine, or less if a control group limits it, in bytes. It does not depend on
// how much of it is in use.
uint64_t total_memory(const std::filesystem::path& root = "/");

// Returns how many processes of this process's control group the kernel has ended for lack of memory; of the
// machine where no group counts them.
uint64_t memory_kills(const std::filesystem::path& root = "/");

}  // namespace tessera
