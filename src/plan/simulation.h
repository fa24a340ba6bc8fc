// How long the ranks of a trace take, and when each waits for others: every rank does its events one after
// the other, messages travel meanwhile, and a rank that waits for one goes on when it is there. A step that
// stands for those after it is done several times, with the messages that are under way from one to the next.
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
  std::vector<Link> links;  // the first joins near ranks, the last all; may be empty where nothing is sent
  double launch = 0;        // s for which the host is busy with an operation of the model
  std::vector<double>
      slow;  // how many times as long a rank works as the schedule says, by its index; 1 if empty
  std::array<double, kAllWorkKinds.size()> factors = {1, 1, 1, 1};  // of the seconds of each kind of work
  bool keeps_spans = true;
};

// What a rank does from `begin` to `end`, in seconds from the begin of the trace.
struct Span {
  enum class Kind { kOperation, kWait } kind = Kind::kOperation;
  size_t event = 0;  // index of the event
  double begin = 0, end = 0;
};

// The seconds of a rank.
struct RankTime {
  double computing = 0, waiting = 0;
  double hidden = 0;  // in which messages travelled while the rank computed
  // Of `waiting`: for hosts to launch, for the latencies of messages, and for their bytes. The rest is for
  // ranks that are behind.
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
  int64_t round = 0;  // counts how often the phases have begun anew, as for the parts of a long video
  Phase phase = Phase::kDenoise;
  int64_t step = 0;
  int64_t repetition = 0;  // of the step that stands for others

  auto operator<=>(const Part&) const = default;  // NOLINT(modernize-use-nullptr): it has no pointer
};

struct SimulatedPart {
  std::vector<RankTime> ranks;
  double end = 0;  // when the last rank is through
};

struct Simulation {
  std::vector<RankTimeline> ranks;
  std::map<Part, SimulatedPart> parts;
};

// Does the steady step (plan/trace.h) `repetitions` times.
//
// A device does what its host has launched, in that order; the host goes on without waiting for it. A
// collective begins when all ranks of its group have posted it, and the links of those that send or receive
// are free: a rank sends and receives one message at a time, in the order in which they can begin. It ends on
// a rank after the time of the rank's own bytes and the latency (plan/link.h). Throws Error(kInput) that
// names `where` if ranks wait for each other forever.
Simulation simulate(const Schedule& schedule, int64_t repetitions, const Costs& costs,
                    const std::string& where);

}  // namespace tessera::plan
