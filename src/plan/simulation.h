// How long the ranks of a trace take, and when each waits for others: every rank does its events one after
// the other, messages travel meanwhile, and a rank that waits for one goes on when it is there.
#pragma once

#include <functional>
#include <vector>

#include "plan/trace.h"

namespace tessera::plan {

struct Costs {
  std::function<double(const OperationEvent&)> operation;  // seconds
  double bandwidth = 1;                                    // bytes/s that a rank sends, and receives
  double latency = 0;                                      // s, of a collective
};

// What a rank does from `begin` to `end`, in seconds from the begin of the trace.
struct Span {
  enum class Kind { kOperation, kWait } kind = Kind::kOperation;
  size_t event = 0;  // index of the event
  double begin = 0, end = 0;
};

struct RankTimeline {
  int64_t rank = 0;
  std::vector<Span> spans;
  double computing = 0, waiting = 0, end = 0;
};

// A collective ends on a rank when all ranks of its group have posted it, plus the time of the rank's own
// bytes; a single message, when it was sent and asked for, plus that time. Throws Error(kInput) that names
// `where` if the trace lacks ranks, or ranks wait for each other forever.
std::vector<RankTimeline> simulate(const Trace& trace, const Costs& costs, const std::string& where);

}  // namespace tessera::plan
