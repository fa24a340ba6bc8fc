// Which rank is to blame when a run of several ends badly.
#pragma once

#include <chrono>
#include <span>
#include <string>

#include "launch/failure.h"

namespace tessera::launch {

// How the watching process last saw a rank.
struct RankEnd {
  enum class State { kRunning, kStopped, kDone, kFailed, kKilled };
  State state = State::kRunning;
  int signal = 0;          // kKilled
  Failure failure = {};    // kFailed
  std::string place = {};  // RankStatus::place()
  int64_t order = 0;       // of the ends: what ended first is more likely the cause
};

// One line on the cause, and the exit code of the run. In this order: a run that was asked to end; a rank
// that a signal killed; one that failed by itself; one that stands still; one that others wait for in vain.
// What users cause (exit codes 2 and 3), and what befell all ranks alike, keeps its own code and words: it is
// no matter of ranks. Everything else is code 4. At least one rank is kStopped, kFailed or kKilled.
Failure judge(std::span<const RankEnd> ranks, std::chrono::milliseconds timeout);

// Whether waiting a little for more ranks to end could change the verdict.
bool may_change(std::span<const RankEnd> ranks);

}  // namespace tessera::launch
