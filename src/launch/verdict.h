// Decides which rank is to blame when a run of several ranks fails.
#pragma once

#include <chrono>
#include <span>
#include <string>

#include "launch/failure.h"

namespace tessera::launch {

// How the supervisor last saw a rank.
struct RankEnd {
  enum class State { kRunning, kStopped, kDone, kFailed, kKilled };
  State state = State::kRunning;
  int signal = 0;          // kKilled
  bool no_memory = false;  // kKilled by the kernel for lack of memory
  Failure failure = {};    // kFailed
  std::string place = {};  // RankStatus::place()
  int64_t order = 0;       // the order in which ranks ended; the first to end is most likely the cause
};

// Returns the cause in one line, and the exit code of the run. Causes are considered in this order: a run
// that was asked to end; a rank killed by a signal; a rank that failed by itself; a stopped rank; a rank that
// others wait for in vain. Errors that users cause (exit codes 2 and 3), and errors that all ranks have in
// common, keep their code and message, because they do not concern a single rank. A lack of memory has code
// 5, everything else 4. At least one rank must be kStopped, kFailed or kKilled.
Failure judge(std::span<const RankEnd> ranks, std::chrono::milliseconds timeout);

// Whether waiting a little for more ranks to end could change the verdict.
bool may_change(std::span<const RankEnd> ranks);

}  // namespace tessera::launch
