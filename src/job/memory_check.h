// Compares the memory that a run needs with the memory that exists, before the run begins; otherwise, the
// kernel would kill it without a message.
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
  bool is_certain = false;  // the memory would not be available even if everything else on the host ended
};

// Returns what is lacking for ranks that need this many bytes together; nothing if the limits allow it.
std::optional<MemoryLack> find_lack(uint64_t need, const std::vector<MemoryLimit>& limits);

// The same for those ranks of the job that are on this host, with advice on how to make the run smaller. Runs
// on GPUs never lack memory here.
std::optional<MemoryLack> find_lack(const Job& job, const plan::MemoryNeed& need, int64_t local_ranks,
                                    const std::vector<MemoryLimit>& limits = memory_limits());

// Returns the bytes of the model's weight files. Files that cannot be read do not count.
uint64_t bytes_of_weights(const engine::Model& model);
// Whether ranks of a run take only a small part of the memory, by a rule that costs nothing, so that their
// exact need does not matter. `weights` are the bytes of the model's files.
bool is_small(const engine::Settings& settings, uint64_t weights, int64_t local_ranks,
              const std::vector<MemoryLimit>& limits);

// Throws Error(kMemory) if ranks of the job that are on this host cannot get the memory that they need, and
// warns if they need more than is free. A job that takes a small part of the memory by any estimate is not
// traced for this.
void require_memory(const Job& job, int64_t local_ranks);

}  // namespace tessera::job
