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

// Records from construction to destruction the operations of this thread, other calls of libtorch
// ("aten::add"; views, allocations and results of less than a KiB are left out), the collectives of `world`
// and the memory of tensors. Both arguments must outlive it. A thread can have one at a time.
class Recorder {
 public:
  // With `is_timed`, events include the time that they take; tensors must not be on the meta device then.
  Recorder(comm::World& world, RankTrace& trace, bool is_timed = false);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Makes the recording follow the phases and steps of a run.
  void follow(engine::Observer& observer);
  // Begins a phase, which starts by loading its part; loading is not recorded, and its tensors count as
  // weights.
  void begin_loading(Phase phase);
  void end_loading();
  void begin_step(int64_t step) { step_ = step; }

  // The origin of each event.
  const std::vector<Origin>& origins() const { return origins_; }
  // The block in which each event happened (ops::current_block()).
  const std::vector<int64_t>& blocks() const { return blocks_; }
  // The current phase of the recording. While a part loads, nothing is recorded.
  Phase phase() const { return phase_; }
  int64_t step() const { return step_; }
  bool is_loading() const { return is_loading_; }

 private:
  friend struct LibtorchCall;
  // An operation that is computing, and the events whose time belongs to it.
  struct Open {
    double begin;
    std::vector<size_t> events;
  };

  double seconds() const;  // since the recording began
  // Adds an event that ends now and began at `begin`.
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
  int64_t bytes_before_ = 0;              // when loading of the part began
  int64_t weights_bytes_ = 0;             // of the part
  std::map<int64_t, int64_t> number_of_;  // for collectives in flight, by comm::Collective::number
  int64_t collectives_ = 0;
  int64_t call_depth_ = 0;  // the nesting of calls of libtorch
  comm::World& world_;
  comm::CollectiveHooks hooks_before_;  // these continue to observe
  ops::ObserveOperations observe_;
  uint64_t callback_;
};

}  // namespace tessera::plan
