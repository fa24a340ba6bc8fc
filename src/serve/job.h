// A job: what a client asked for, from its acceptance by the server until its result is there.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::serve {

using Seconds = std::chrono::duration<double>;
inline constexpr Seconds kNever{std::numeric_limits<double>::infinity()};

enum class JobState {
  kQueued,
  kRunning,   // on a world, in a run
  kEncoding,  // its run has ended, and its result is being written
  // A job in one of the following states has ended, and its state no longer changes.
  kSucceeded,
  kFailed,
  kCancelled,  // by its client
  kExpired     // its deadline passed before its run ended
};

inline constexpr std::array<std::string_view, 7> kJobStateNames = {
    "queued", "running", "encoding", "succeeded", "failed", "cancelled", "expired"};

inline std::string_view name_of(JobState state) {
  return kJobStateNames[static_cast<size_t>(state)];
}

inline bool has_ended(JobState state) {
  return state >= JobState::kSucceeded;
}

// What the scheduler knows about a job. Points in time are seconds on a single clock of the caller's choice
// that never goes back.
struct Job {
  std::string id;
  std::string owner;      // who is charged for it: a name for the key that came with it
  std::string batch_key;  // requests with the same key can share a run (engine/batch.h)
  Seconds estimate{1};    // for the whole job when it has a world to itself; positive
  int64_t steps = 1;      // of denoising
  int64_t pictures = 1;   // the number it adds to a batch
  uint64_t bytes = 0;     // occupied until the job has ended
  std::optional<Seconds> deadline{};
  // Whether its run may be on a world with other runs and alternate with them.
  bool may_join = true;
  // Whether its run can be saved between two steps and resumed with the same result (engine/session.h).
  bool may_be_saved = true;
};

}  // namespace tessera::serve
