// How long the ranks of a trace take, and when each waits for others: every rank does its events one after
// the other while messages travel, and a rank that waits for one continues when it arrives. A step that
// represents later ones is repeated, with the messages in flight from one to the next.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plan/efficiency.h"
#include "plan/link.h"
#include "plan/trace.h"

namespace tessera::plan {

struct Schedule;

// What the time of a schedule depends on besides its work.
struct Costs {
  std::vector<Link> links;   // the first joins near ranks, the last all; may be empty if nothing is sent
  double launch = 0;         // s in which the host is busy with an operation of the model
  std::vector<double> slow;  // by rank index, how much slower it works than in the schedule; 1 if empty
  std::array<double, kAllWorkKinds.size()> factors = {1, 1, 1, 1};  // for the seconds of each kind of work
  bool keeps_spans = true;
};

// What a rank does from `begin` to `end`, in seconds from the start of the trace.
struct Span {
  enum class Kind { kOperation, kWait } kind = Kind::kOperation;
  size_t event = 0;  // the index of the event
  double begin = 0, end = 0;
};

// The seconds of a rank.
struct RankTime {
  double computing = 0, waiting = 0;
  double hidden = 0;  // in which messages travelled while the rank computed
  // Parts of `waiting`: for hosts to launch, for the latencies of messages, and for their bytes. The rest is
  // for ranks that are behind.
  double launching = 0, latency = 0, sending = 0;

  RankTime& operator+=(const RankTime& other);
};

struct RankTimeline : RankTime {
  int64_t rank = 0;
  std::vector<Span> spans;
  double end = 0;
};

// A phase of a run, or a step of its denoiser, in the order of the program.
struct Part {
  int64_t round = 0;  // counts how often the phases have started over, as for the parts of a long video
  Phase phase = Phase::kDenoise;
  int64_t step = 0;
  int64_t repetition = 0;  // of the step that represents others

  auto operator<=>(const Part&) const = default;  // NOLINT(modernize-use-nullptr): it has no pointer
};

struct SimulatedPart {
  std::vector<RankTime> ranks;
  double end = 0;  // when the last rank has finished
};

struct Simulation {
  std::vector<RankTimeline> ranks;
  std::map<Part, SimulatedPart> parts;
};

// Does the steady step (plan/trace.h) `repetitions` times.
//
// A device executes what its host has launched, in order; the host continues without waiting for it. A
// collective begins when all ranks of its group have posted it, and the links of those that send or receive
// are free: a rank sends and receives one message at a time, in the order in which they can begin. It ends on
// a rank after the time of the rank's own bytes and the latency (plan/link.h). Throws Error(kInput) that
// names `where` if ranks wait for each other forever.
Simulation simulate(const Schedule& schedule, int64_t repetitions, const Costs& costs,
                    const std::string& where);

}  // namespace tessera::plan
