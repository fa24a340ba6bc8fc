// Starts ranks on this host as forks of this process.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "launch/failure.h"
#include "launch/worker.h"

namespace tessera::launch {

// Runs `run` in each of `ranks` forks of this process, and supervises them. A fork has everything that this
// process has read, and shares its memory until either writes to it; loading libtorch again would take a rank
// 0.3 s and 55 MiB. It also has a socket to every other rank, and its status is in memory that all share.
// Ports are not opened, and nothing has a name that other processes could use. `run` returns the exit code of
// its rank and must not throw; destructors do not run in the fork.
//
// A rank fails when it reports so or a signal ends it; a rank that is stopped for longer than the timeout
// counts as lost. The first failure ends the other ranks: by SIGTERM, and by SIGKILL after two seconds.
// SIGTERM, SIGHUP and a second SIGINT to this process do the same; the first SIGINT asks the ranks to end
// together, and a line is printed (see finish_before_end()). When this process dies, the ranks die. Returns
// what failed, with an exit code of 0 if all ranks are done. Throws Error(kPeer) if a rank cannot be started.
//
// Must be called while this is the only thread, before anything has computed in parallel or used a GPU: a
// fork has no other threads, although its OpenMP pool believes that it has, and CUDA does not survive a fork.
Failure launch_ranks(int64_t ranks, std::chrono::milliseconds timeout,
                     const std::function<int(const Worker&)>& run);

}  // namespace tessera::launch
