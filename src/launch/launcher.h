// Ranks of this host as processes of their own, and the one that watches over them.
#pragma once

#include <sys/types.h>

#include <functional>
#include <vector>

#include "comm/world.h"
#include "launch/board.h"
#include "launch/failure.h"

namespace tessera::launch {

struct Launched {
  Failure failure;  // exit code 0: all ranks are done
  std::vector<pid_t> processes;
};

// Forks `ranks` processes that each run `body` with their place and the board, and waits for them. No thread
// may exist yet. A rank fails when `body` throws or a signal ends it; a rank that is stopped for longer than
// the timeout of `common` counts as lost. The first to fail ends the others: with SIGTERM, after two seconds
// with SIGKILL. So do SIGTERM and SIGHUP here, and the second SIGINT; the first asks the ranks to end
// together, through the board. When this process dies, the ranks die.
//
// common: timeout and interface; the rest of a rank's place is filled in.
Launched launch_ranks(int64_t ranks, const comm::Rendezvous& common,
                      const std::function<void(const comm::Rendezvous&, Board&)>& body);

}  // namespace tessera::launch
