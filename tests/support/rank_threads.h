// Runs ranks as threads of one process, for tests.
#pragma once

#include <chrono>
#include <functional>

#include "comm/world.h"

namespace tessera::comm {

enum class Wire {
  kOrdered,  // as between GPUs, in the order of NCCL's communicators, which is the strictest
  kStrict,   // the same for tensors on the strict device only; those of the host go through Gloo
  kShared,   // as between processes of one host
  kHosts,    // as on two hosts, each with every second rank
  kGloo      // as between hosts, over the loopback device
};

// `make tsan` finds the tests of ranks by `Rank` in their names, which this function checks.
// Runs `body` once for each of `size` ranks, each on a separate thread with one intra-op thread. Rethrows the
// first exception after all threads have ended; with an ordered wire, one rank's exception ends them all.
void run_ranks_as_threads(int64_t size, const std::function<void(World)>& body, Wire wire = Wire::kOrdered,
                          std::chrono::milliseconds timeout = std::chrono::seconds(20));

}  // namespace tessera::comm
