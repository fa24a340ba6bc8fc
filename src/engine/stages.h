// A run on one rank is a sequence of stages that all ranks go through in the same order. Each stage begins by
// asking whether to go on and ends in a settlement of all ranks, including those that have nothing to do in
// it. So no rank leaves the run while another one can still fail.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <utility>

#include "engine/agreement.h"
#include "engine/observer.h"
#include "parallel/ranks.h"

namespace tessera::engine {

// Thrown when all ranks have agreed to end a run and no message is under way. After any other exception
// messages may be under way.
struct SettledEnd {
  std::exception_ptr cause;  // what this rank throws
};

// Whether ranks wait for each other within a stage. A rank that fails in a stage without messages keeps no
// other rank waiting.
enum class Messages { kNone, kSome };

class Stages {
 public:
  // `observer` is the caller's. `ranks` must outlive this.
  Stages(const parallel::Ranks& ranks, const Observer& observer);
  Stages(const Stages&) = delete;
  Stages& operator=(const Stages&) = delete;

  // The caller's observer, whose `cancelled` asks all ranks.
  Observer& observer() { return observer_; }
  // The answer of rank 0, for stages in which only the first ranks of replicas ask.
  bool ask_replicas() { return of_replicas_.ask(is_wished_to_end_); }
  // Throws Cancelled if the caller wants the run to end. For a rank that works alone; only rank 0 has a wish.
  void check_alone() const {
    if (world_.rank == 0 && is_wished_to_end_ && is_wished_to_end_()) throw Cancelled();
  }
  Agreement& of_all() { return of_all_; }

  // Runs `work`, and `conclude` after it, when no message is under way any more, unless the run is cancelled.
  // Throws SettledEnd; or another exception when this rank fails while messages may be under way.
  template <typename Work, typename Conclude>
  void run(Messages messages, const Work& work, const Conclude& conclude) {
    bool is_amid_messages = false;
    std::exception_ptr failure;
    try {
      check_cancelled(observer_);
      is_amid_messages = messages == Messages::kSome && world_.size > 1;
      work();
      is_amid_messages = false;
      check_alone();
      conclude();
    } catch (const SettledEnd&) {
      throw;
    } catch (...) {
      // If rank 0 has answered yes, all ranks that wait for each other stop at this place.
      if (is_amid_messages && !of_all_.has_said_yes() && !of_replicas_.has_said_yes()) throw;
      failure = std::current_exception();
    }
    settle(failure);
  }
  template <typename Work>
  void run(Messages messages, const Work& work) {
    run(messages, work, [] {});
  }

  // Runs a stage that the observer knows as `phase`, and adds its time to `total`.
  template <typename Work>
  void run_phase(Phase phase, double& total, Messages messages, const Work& work) {
    double seconds = 0;
    run(
        messages,
        [&] {
          if (observer_.started) observer_.started(phase);
          apart_ = 0;
          seconds = seconds_of(work) - apart_;
          total += seconds;
        },
        [&] {
          if (observer_.finished) observer_.finished(phase, seconds);
        });
  }

  // Within a phase: runs what belongs to none, and adds its time to `total` alone.
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
  template <typename Work>
  static double seconds_of(const Work& work) {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    work();
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  const comm::Group& world_;
  Observer observer_;
  std::function<bool()> is_wished_to_end_;  // of the caller; asked on rank 0
  Agreement of_all_, of_replicas_;
  double apart_ = 0;  // seconds of the current phase
};

}  // namespace tessera::engine
