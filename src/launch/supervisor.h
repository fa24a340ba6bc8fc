// Runs in the process that started the ranks on this host, and watches them until all are done or one is to
// blame.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "core/host.h"
#include "launch/failure.h"
#include "launch/status.h"
#include "launch/verdict.h"

namespace tessera::launch {

// Blocks the signals that the supervising thread waits for, until it is destroyed. Ranks inherit the mask and
// lift it when they are ready: leave_signals_to_parent().
class BlockedSignals {
 public:
  using Clock = std::chrono::steady_clock;

  BlockedSignals();
  ~BlockedSignals();
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  // Waits for a signal and returns it, or 0 at `deadline`.
  int next(Clock::time_point deadline) const;

 private:
  sigset_t set_, before_;
};

class Supervisor {
 public:
  // `timeout` limits how long a rank may be stopped by a signal or a debugger.
  Supervisor(StatusTable& statuses, std::chrono::milliseconds timeout, const BlockedSignals& signals)
      : statuses_(statuses), timeout_(timeout), signals_(signals) {}

  // Adds a rank. Must be called in the order of the ranks.
  void add(pid_t process);

  // Returns when all ranks are done (exit code 0), one is to blame, or the user ends the run; by then every
  // rank has ended.
  Failure run();

  // Ends all ranks: SIGTERM first, SIGKILL two seconds later.
  void end_all();

 private:
  using Clock = std::chrono::steady_clock;
  using State = RankEnd::State;

  bool alive(size_t i) const;
  bool any_alive() const;
  bool all_done() const;
  void signal_all(int number) const;
  void collect();
  void note(size_t i, int status);
  bool is_stopped_too_long() const;
  Clock::time_point next_deadline() const;
  std::optional<Failure> judge_if_over();
  std::string what_is_left() const;

  StatusTable& statuses_;
  std::chrono::milliseconds timeout_;
  const BlockedSignals& signals_;
  std::vector<pid_t> processes_;
  std::vector<RankEnd> ends_;
  std::vector<Clock::duration> stopped_for_;  // by rank; zero if it is running
  Clock::time_point last_look_ = Clock::now();
  Clock::time_point first_failure_ = Clock::time_point::max();
  uint64_t memory_kills_before_ = memory_kills();
  int64_t ends_seen_ = 0;
  bool asked_to_end_ = false;
};

}  // namespace tessera::launch
