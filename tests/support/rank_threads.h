// Ranks as threads of one process: for tests.
#pragma once

#include <chrono>
#include <functional>

#include "comm/world.h"

namespace tessera::comm {

enum class Wire {
  kOrdered,  // as between GPUs: in the order of NCCL's communicators, the strictest there is
  kStrict,   // the same for tensors on the strict device alone; those of the host go ways of their own
  kShared,   // as between processes of one host
  kHosts,    // as on two hosts, each with every second rank
  kGloo      // as between hosts, over the loopback device
};

// Runs `body` once for each of `size` ranks, each on a thread of its own with one intra-op thread. Rethrows
// the first exception after all threads have ended; ordered ones end with the first that throws.
void run_ranks_as_threads(int64_t size, const std::function<void(World)>& body, Wire wire = Wire::kOrdered,
                          std::chrono::milliseconds timeout = std::chrono::seconds(20));

}  // namespace tessera::comm
