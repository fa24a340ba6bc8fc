// Compares the memory that a run needs with the memory that exists, before the run, because the kernel would
// kill it without a message.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/host.h"
#include "job/job.h"
#include "plan/memory_need.h"

namespace tessera::job {

plan::MemoryNeed need_of(const Job& job);

// What a run lacks on a host.
struct MemoryLack {
  std::string message;
  bool is_certain = false;  // the memory cannot be had, even if all else on the host ends
};

// Returns what is lacking for ranks that need this many bytes together; nothing if the limits allow it.
std::optional<MemoryLack> find_lack(uint64_t need, const std::vector<MemoryLimit>& limits);

// The same for ranks of the job that are on this host, with what may make the run smaller. Runs on GPUs lack
// nothing here.
std::optional<MemoryLack> find_lack(const Job& job, const plan::MemoryNeed& need, int64_t local_ranks);

// Throws Error(kMemory) if ranks of the job that are on this host cannot have the memory that they need, and
// warns if they need more than what is free. A job that takes a small part of the memory by any estimate is
// not traced for that.
void require_memory(const Job& job, int64_t local_ranks);

}  // namespace tessera::job
