// What one step of a run does on each rank, in the order of the program: operations, messages, and the memory
// that tensors take. A trace is made from shapes alone (plan/trace_model.h); a run among ranks does the same,
// operation by operation.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/json.h"

namespace tessera::plan {

struct TensorShape {
  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
  bool operator==(const TensorShape&) const = default;

  int64_t bytes() const;
};

// See ops/operation.h for names, roles, FLOPs and bytes. In traces from shapes, attention, which has no
// weights, has a role beside the layer that takes its result: "blocks.0.attn1.attention".
struct OperationEvent {
  std::string name, role;
  int64_t block = -1;
  TensorShape output;
  std::vector<TensorShape> inputs;
  int64_t flops = 0, bytes = 0;
  bool operator==(const OperationEvent&) const = default;
};

// Bytes that go to a rank of the world or come from it.
struct Transfer {
  int64_t peer = 0, bytes = 0;
  bool operator==(const Transfer&) const = default;
};

// A collective that is posted; a WaitEvent with the same number ends it.
struct CollectiveEvent {
  std::string axis, name;
  int64_t number = 0;  // counts the collectives of the rank
  int64_t bytes = 0;   // those that this rank sends
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> ranks;  // of the group
  std::vector<Transfer> sends, receives;
  bool operator==(const CollectiveEvent&) const = default;
};

struct WaitEvent {
  int64_t number = 0;
  bool operator==(const WaitEvent&) const = default;
};

struct Graph;

enum class Phase { kEncode, kDenoise, kDecode };
inline constexpr std::array kAllPhases = {Phase::kEncode, Phase::kDenoise, Phase::kDecode};
std::string phase_name(Phase phase);

// Seconds since the recording began.
struct TimeSpan {
  double begin = 0, end = 0;
  bool operator==(const TimeSpan&) const = default;
};

inline constexpr int64_t kBeforeSteps = -1;

struct Event {
  Phase phase = Phase::kDenoise;
  // In kDenoise: kBeforeSteps for what a run does once before its first step, such as the keys and values of
  // the prompt; the number of traced steps for what follows the last one.
  int64_t step = 0;
  // In a real run. Operations that one kernel computes together have the same time. Posting a collective
  // takes no time; its WaitEvent takes as long as the rank waits. Meta tensors take no time.
  std::optional<TimeSpan> time = {};
  std::variant<OperationEvent, CollectiveEvent, WaitEvent> what;
  // What tensors take besides weights at the end of the event, and the maximum since the previous event.
  int64_t live_bytes = 0, peak_bytes = 0;
  // For an operation or a collective: its node in the rank's graph; -1 if the graph does not include it.
  int64_t node = -1;
  bool operator==(const Event&) const = default;
};

// The traced step that represents those that were not traced: the only one, or the last but one. In the last
// step of a run, ranks send nothing for a next one.
int64_t steady_step(int64_t traced_steps);

// How often the event happens in a run of `steps` steps, at least as many as were traced. Events before or
// after the steps happen once.
int64_t times_in_run(const Event& event, int64_t traced_steps, int64_t steps);

struct RankTrace {
  int64_t rank = 0;
  // Weights of the part that each phase runs, by Phase.
  std::vector<int64_t> weights_bytes = {0, 0, 0};
  std::vector<Event> events;
  // What is done once before the steps of the denoiser, and one of its steady steps, value by value
  // (plan/graph.h); null if the trace contains no graph.
  std::shared_ptr<const Graph> graph = {};
  bool operator==(const RankTrace& other) const;

  // The maximum that tensors take in a phase, including the weights of its part.
  int64_t peak_bytes(Phase phase) const;
  int64_t peak_bytes() const;  // in any phase
};

struct Trace {
  std::string model;  // the class of the pipeline
  Json settings;      // what was traced: the request's fields and the degrees
  int64_t world_size = 1;
  int64_t steps = 1;         // in the run: how often it evaluates the denoiser
  int64_t traced_steps = 1;  // the first ones
  std::vector<RankTrace> ranks;
  bool operator==(const Trace&) const = default;
};

// A trace as a JSON text: of version 2 if it holds graphs, otherwise of version 1. read_trace() reads both;
// it throws Error(kInput) naming `where` for a text that is truncated, has another version, or contains
// anything but a trace.
std::string write_trace(const Trace& trace);
bool is_trace(const Json& json);  // of any version
Trace read_trace(std::string_view text, const std::string& where);

}  // namespace tessera::plan
