// Ranks as threads of one process: for tests.
#pragma once

#include <chrono>
#include <functional>

#include "parallel/world.h"

namespace tessera::parallel {

enum class Wire {
  kMemory,  // messages are copied from one thread's tensor to the other's, without a system call
  kGloo     // as between processes, over the loopback device
};

// Runs `body` once for each of `size` ranks, each on a thread of its own with one intra-op thread. Rethrows
// the first exception after all threads have ended; ranks in memory end with the first that throws.
void run_ranks_as_threads(int64_t size, const std::function<void(World)>& body, Wire wire = Wire::kMemory,
                          std::chrono::milliseconds timeout = std::chrono::seconds(20));

}  // namespace tessera::parallel
