// What ranks do, reduced to what its time depends on: work of some seconds, messages that are posted, and
// waits for them. Made once of a trace and a machine, it is simulated for any steps, links and shares.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/efficiency.h"
#include "plan/link.h"
#include "plan/simulation.h"
#include "plan/trace.h"

namespace tessera::plan {

// Kernels of an operation of the model, which the host of an accelerator launches. What is between them,
// views and copies, goes with them: eager frameworks have more of it than Tessera, so that a fit to their
// runs would not be one of kernels.
int64_t launches_of(const std::string& name);
// Attention to a block of keys, which is merged with that to the blocks before by seven more kernels
// (ops/attention.cc).
inline constexpr int64_t kLaunchesOfAttentionPart = 8;

// An event of a trace.
struct Task {
  enum class Kind : uint8_t { kWork, kPost, kWait } kind = Kind::kWork;
  WorkKind work = WorkKind::kVector;
  int64_t launches = 0;           // of kernels, by the host of an accelerator
  int32_t meeting = -1;           // of a post: index of Schedule::meetings
  int64_t number = 0;             // of a post and its wait, in the rank
  double seconds = 0;             // of work, on a device that is alone
  double sent = 0, received = 0;  // bytes
};

// A kind of exchange of a channel: those of a channel take place in the order in which ranks post them.
struct MeetingKind {
  int32_t channel = 0;
  int32_t members = 1;          // of the simulated ranks
  int64_t first = 0, last = 0;  // ranks of the world
  Transmission transmission;
};

// Consecutive events of a rank, as part of a run. Numbers of repeated posts are shifted.
struct Stretch {
  Part part;
  size_t begin = 0, end = 0;  // tasks
  int64_t posts = 0;
  bool is_steady = false;
};

struct RankSchedule {
  int64_t rank = 0;
  std::vector<Task> tasks;  // by event of the trace
  std::vector<Stretch> program;
};

struct Schedule {
  std::vector<RankSchedule> ranks;
  std::vector<MeetingKind> meetings;
  int32_t channels = 0;
  int64_t traced_steps = 1;
};

// `seconds` is by rank of the trace and event, `kinds` too (empty: nobody asks). `stands_for` tells, by rank
// of the world, which rank of the trace does the same at the same time, as an index; empty for a trace with
// all ranks. Throws Error(kInput) that names `where` if it then lacks ranks.
Schedule make_schedule(const Trace& trace, const std::vector<std::vector<double>>& seconds,
                       const std::vector<std::vector<WorkKind>>& kinds, const std::string& where,
                       const std::vector<size_t>& stands_for = {});

}  // namespace tessera::plan
