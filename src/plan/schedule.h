// What ranks do, reduced to what its time depends on: work of some seconds, messages that are posted, and
// waits for them. Made once from a trace and a machine, it is simulated for any steps, links and shares.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/efficiency.h"
#include "plan/link.h"
#include "plan/simulation.h"
#include "plan/trace.h"

namespace tessera::plan {

// The kernels of an operation of the model that the host of an accelerator launches. Views and copies between
// operations count with them: eager frameworks have more of these than Tessera, so a fit to their runs would
// not be a fit of kernels.
int64_t launches_of(const std::string& name);
// Attention to a block of keys, which seven more kernels merge with attention to earlier blocks
// (ops/attention.cc).
inline constexpr int64_t kLaunchesOfAttentionPart = 8;

// An event of a trace.
struct Task {
  enum class Kind : uint8_t { kWork, kPost, kWait } kind = Kind::kWork;
  WorkKind work = WorkKind::kVector;
  int64_t launches = 0;           // of kernels, by the host of an accelerator
  int32_t meeting = -1;           // for a post: an index into Schedule::meetings
  int64_t number = 0;             // for a post and its wait, within the rank
  double seconds = 0;             // of work, on a device that is alone
  double sent = 0, received = 0;  // bytes
};

// A kind of exchange on a channel; the exchanges of a channel take place in the order in which ranks post
// them.
struct MeetingKind {
  int32_t channel = 0;
  int32_t members = 1;          // among the simulated ranks
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

// `seconds` is by rank of the trace and event, as is `kinds` (empty if not needed). `stands_for` has, by rank
// of the world, the index of the rank of the trace that does the same at the same time; empty for a trace
// with all ranks. Throws Error(kInput) that names `where` if it then lacks ranks.
Schedule make_schedule(const Trace& trace, const std::vector<std::vector<double>>& seconds,
                       const std::vector<std::vector<WorkKind>>& kinds, const std::string& where,
                       const std::vector<size_t>& stands_for = {});

}  // namespace tessera::plan
