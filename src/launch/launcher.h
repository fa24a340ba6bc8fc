// Starts ranks on this host as child processes.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "launch/failure.h"

namespace tessera::launch {

struct Launched {
  Failure failure;         // 0 as its exit code means that all ranks are done
  std::string file_token;  // part of the names of the ranks' temporary files: see remove_unfinished_file()
};

// Runs this program again, `ranks` times, with the same command-line words, and supervises the processes.
// Each inherits what it needs: a socket to every other rank, the memory to which it writes its status, and
// `request`, a text of any length; take_worker_place() finds them. No port is opened, and nothing has a name
// that other processes could use.
//
// A rank fails when it reports so or a signal ends it; a rank that is stopped for longer than the timeout
// counts as lost. The first failure ends the other ranks: by SIGTERM, and by SIGKILL after two seconds. So do
// SIGTERM, SIGHUP and the second SIGINT here; the first SIGINT asks the ranks to end together. When this
// process dies, the ranks die. May be called while there are other threads, from a thread that no other
// signal handling depends on. Throws Error(kPeer).
Launched launch_ranks(int64_t ranks, std::chrono::milliseconds timeout, const std::vector<std::string>& words,
                      const std::string& request);

}  // namespace tessera::launch
