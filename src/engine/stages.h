// A run on one rank is a sequence of stages that all ranks go through in the same order. Each stage begins by
// asking whether to go on and ends in a settlement of all ranks, including those that have nothing to do in
// it. No rank therefore leaves the run while another can still fail.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <utility>

#include "comm/group.h"
#include "engine/agreement.h"
#include "engine/observer.h"

namespace tessera::engine {

// Thrown when all ranks have agreed to end a run and no message is in flight. After any other exception,
// messages may be in flight.
struct SettledEnd {
  std::exception_ptr cause;  // what this rank throws
};

// Whether ranks wait for each other within a stage. A rank that fails in a stage without messages keeps no
// other rank waiting.
enum class Messages { kNone, kSome };

class Stages {
 public:
  // `world` and `replicas` are those of parallel::Ranks (`world` and `data`), or groups of one for a rank
  // that is alone. `observer` is the caller's.
  Stages(comm::Group world, comm::Group replicas, const Observer& observer);
  Stages(const Stages&) = delete;
  Stages& operator=(const Stages&) = delete;

  // The caller's observer, whose `cancelled` asks all ranks.
  Observer& observer() { return observer_; }
  // The answer of rank 0, for stages in which only the first ranks of replicas ask.
  bool ask_replicas() { return of_replicas_.ask(is_wished_to_end_); }
  // For a rank that works alone: throws Cancelled if the caller wants the run to end. Only rank 0 is asked.
  void check_alone() const {
    if (world_.rank == 0 && is_wished_to_end_ && is_wished_to_end_()) throw Cancelled();
  }
  Agreement& of_all() { return of_all_; }

  // Runs `work`, and after it, when no message is in flight any more, `conclude`, unless the run is
  // cancelled. Throws SettledEnd, or another exception if this rank fails while messages may be in flight.
  template <typename Work, typename Conclude>
  void run(Messages messages, const Work& work, const Conclude& conclude) {
    begin();
    go_on(messages, work);
    end(conclude);
  }
  template <typename Work>
  void run(Messages messages, const Work& work) {
    run(messages, work, [] {});
  }

  // Runs a stage that the observer knows as `phase`, and adds its time to `total`.
  template <typename Work>
  void run_phase(Phase phase, double& total, Messages messages, const Work& work) {
    begin_phase(phase, messages);
    go_on_with_phase(total, messages, work);
    end_phase(phase);
  }

  // The same in pieces, for a phase with messages that the caller leaves and re-enters: any number of pieces
  // of work may come between its beginning and its end. All ranks must make the same calls.
  void begin_phase(Phase phase, Messages messages) {
    begin();
    phase_seconds_ = 0;
    go_on(messages, [&] {
      if (observer_.started) observer_.started(phase);
    });
  }
  template <typename Work>
  void go_on_with_phase(double& total, Messages messages, const Work& work) {
    go_on(messages, [&] {
      apart_ = 0;
      const double seconds = seconds_of(work) - apart_;
      phase_seconds_ += seconds;
      total += seconds;
    });
  }
  void end_phase(Phase phase) {
    end([&] {
      if (observer_.finished) observer_.finished(phase, phase_seconds_);
    });
  }

  // Within a phase: runs work that belongs to no phase, and adds its time only to `total`.
  template <typename Work>
  void run_apart(double& total, const Work& work) {
    const double seconds = seconds_of(work);
    total += seconds;
    apart_ += seconds;
  }

  // Returns if no rank has failed, else throws SettledEnd. If the settlement itself fails, the failure of
  // this rank takes precedence.
  void settle(const std::exception_ptr& failure);

 private:
  void begin() {
    go_on(Messages::kNone, [&] { check_cancelled(observer_); });
  }
  // A failure ends the stage here, on all ranks that wait for each other.
  template <typename Work>
  void go_on(Messages messages, const Work& work) {
    try {
      work();
    } catch (const SettledEnd&) {
      throw;
    } catch (...) {
      // If rank 0 has answered yes, all ranks that wait for each other stop at this place.
      const bool is_amid_messages = messages == Messages::kSome && world_.size > 1;
      if (is_amid_messages && !of_all_.has_said_yes() && !of_replicas_.has_said_yes()) throw;
      settle(std::current_exception());
    }
  }
  template <typename Conclude>
  void end(const Conclude& conclude) {
    go_on(Messages::kNone, [&] {
      check_alone();
      conclude();
    });
    settle(nullptr);
  }

  template <typename Work>
  static double seconds_of(const Work& work) {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    work();
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  comm::Group world_;
  Observer observer_;
  std::function<bool()> is_wished_to_end_;  // the caller's; asked on rank 0
  Agreement of_all_, of_replicas_;
  double phase_seconds_ = 0;  // of the current phase
  double apart_ = 0;          // time within the current piece of work that belongs to no phase
};

}  // namespace tessera::engine
