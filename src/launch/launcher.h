// Ranks of this host as processes of their own, started by this one.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "launch/failure.h"

namespace tessera::launch {

struct Launched {
  Failure failure;         // exit code 0: all ranks are done
  std::string file_token;  // of the temporary files of the ranks: remove_unfinished_file()
};

// Runs this program again, `ranks` times, with the same words on the command line, and supervises it. What
// each needs, it inherits: a socket to every other rank and the memory where it tells its status;
// take_worker_place() finds them. No port is opened, and nothing has a name that others could use.
//
// A rank fails when it says so or a signal ends it; one that is stopped for longer than the timeout counts as
// lost. The first to fail ends the others: with SIGTERM, after two seconds with SIGKILL. So do SIGTERM and
// SIGHUP here, and the second SIGINT; the first asks the ranks to end together. When this process dies, the
// ranks die. May be called while there are threads, from one that no other signal handling depends on. Throws
// Error(kPeer).
Launched launch_ranks(int64_t ranks, std::chrono::milliseconds timeout,
                      const std::vector<std::string>& words);

}  // namespace tessera::launch
