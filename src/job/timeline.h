// Records what a rank does over time, as events of the Trace Event Format, which Perfetto and
// chrome://tracing show: a process per rank, with one track for its work (compute, waiting, stages) and one
// for messages in flight.
#pragma once

#include <chrono>
#include <string>

#include "comm/transport.h"
#include "core/json.h"
#include "engine/observer.h"

namespace tessera::job {

class Timeline {
 public:
  using Clock = std::chrono::steady_clock;

  // The timeline starts when it is constructed, which ranks do right after they have met.
  explicit Timeline(int64_t rank);

  void add_collective(const comm::Collective& collective, std::chrono::nanoseconds under_way,
                      std::chrono::nanoseconds waited);  // it ends at the time of the call
  void add_compute(int64_t step, int64_t first_patch, int64_t patches, Clock::time_point begin,
                   Clock::time_point end);
  void add_phase(engine::Phase phase, double seconds);  // it ends at the time of the call

  const nlohmann::ordered_json& events() const { return events_; }

 private:
  void add(const std::string& name, int64_t track, Clock::time_point begin, Clock::time_point end,
           nlohmann::ordered_json arguments);

  int64_t rank_;
  Clock::time_point zero_ = Clock::now();
  nlohmann::ordered_json events_ = nlohmann::ordered_json::array();
};

}  // namespace tessera::job
