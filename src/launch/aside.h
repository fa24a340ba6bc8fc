// Runs something in a fork whose threads and memory are gone afterwards. A process that starts ranks as forks
// of itself must not have computed with several threads, and what it holds counts as theirs.
#pragma once

#include <functional>
#include <string>

#include "launch/failure.h"

namespace tessera::launch {

// What went wrong in the fork. Its message is not printed yet.
struct FailedAside {
  Failure failure;
};

// Returns what `run` returns in a fork of this process, whose errors are thrown here as FailedAside. `run`
// may start ranks (launch_ranks). Signals from a terminal are for this process, and the fork ends with it.
// Must be called while this is the only thread.
std::string run_aside(const std::function<std::string()>& run);

}  // namespace tessera::launch
