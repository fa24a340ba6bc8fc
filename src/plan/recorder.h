// Records what the current thread does into the trace of a rank.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <variant>
#include <vector>

#include "comm/world.h"
#include "engine/observer.h"
#include "ops/operation.h"
#include "plan/origin.h"
#include "plan/trace.h"
#include "weights/memory_counter.h"

namespace tessera::plan {

// Records from its construction to its destruction the operations of this thread, what it calls of libtorch
// besides ("aten::add"; views, allocations and results of less than a KiB are left out), the collectives of
// `world` and the memory of tensors. Both arguments must outlive it. A thread can have one at a time.
class Recorder {
 public:
  // With `is_timed`, events have the time that they take; tensors must not be on the meta device then.
  Recorder(comm::World& world, RankTrace& trace, bool is_timed = false);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Has the recording follow the phases and steps of a run.
  void follow(engine::Observer& observer);
  // Begins a phase: loading its part comes next, of which nothing is recorded, and whose tensors count as
  // weights.
  void begin_loading(Phase phase);
  void end_loading();
  void begin_step(int64_t step) { step_ = step; }

  // What each event was recorded of.
  const std::vector<Origin>& origins() const { return origins_; }
  // The block in which each event happened (ops::current_block()).
  const std::vector<int64_t>& blocks() const { return blocks_; }
  // Where the recording is. While a part loads, nothing is recorded.
  Phase phase() const { return phase_; }
  int64_t step() const { return step_; }
  bool is_loading() const { return is_loading_; }

 private:
  friend struct LibtorchCall;
  // An operation that computes, and the events of which the time is its own.
  struct Open {
    double begin;
    std::vector<size_t> events;
  };

  double seconds() const;  // since the recording began
  // `begin` is that of an event that ends now.
  void add(std::variant<OperationEvent, CollectiveEvent, WaitEvent> what, double begin, Origin origin = {});
  void add_operation(const ops::Operation& operation);
  void began(const comm::Collective& collective);
  void ended(const comm::Collective& collective, std::chrono::nanoseconds under_way,
             std::chrono::nanoseconds waited);
  void scope_changed(bool begins);

  RankTrace& trace_;
  bool is_timed_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::vector<Open> open_;
  std::vector<Origin> origins_;
  std::vector<int64_t> blocks_;
  Phase phase_ = Phase::kEncode;
  int64_t step_ = 0;
  bool is_loading_ = false;
  weights::MemoryCounter memory_;
  int64_t bytes_before_ = 0;              // when the loading of the part began
  int64_t weights_bytes_ = 0;             // of the part
  std::map<int64_t, int64_t> number_of_;  // of collectives under way, by comm::Collective::number
  int64_t collectives_ = 0;
  int64_t call_depth_ = 0;  // of calls of libtorch within each other
  comm::World& world_;
  comm::CollectiveHooks hooks_before_;  // they go on observing
  ops::ObserveOperations observe_;
  uint64_t callback_;
};

}  // namespace tessera::plan
