// Runs something in a fork, whose threads and memory are gone afterwards. A process that starts ranks as
// forks of itself must not have computed with several threads, and the memory that it holds counts as theirs.
#pragma once

#include <functional>
#include <string>

#include "launch/failure.h"

namespace tessera::launch {

// What went wrong in the fork. Its message has not been printed yet.
struct FailedAside {
  Failure failure;
};

// Runs `run` in a fork of this process and returns its result. Errors in the fork are thrown here as
// FailedAside. `run` may start ranks (launch_ranks). Signals from a terminal are for this process, and the
// fork ends with it. Must be called while this is the only thread.
std::string run_aside(const std::function<std::string()>& run);

}  // namespace tessera::launch
