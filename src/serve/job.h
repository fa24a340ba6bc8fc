// A job: what a client asked for, from when the server has accepted it until its result is there.
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
  // A job in one of the following states has ended, and stays in it.
  kSucceeded,
  kFailed,
  kCancelled,  // by its client
  kExpired     // its deadline passed before its run had ended
};

inline constexpr std::array<std::string_view, 7> kJobStateNames = {
    "queued", "running", "encoding", "succeeded", "failed", "cancelled", "expired"};

inline std::string_view name_of(JobState state) {
  return kJobStateNames[static_cast<size_t>(state)];
}

inline bool has_ended(JobState state) {
  return state >= JobState::kSucceeded;
}

// What the scheduler knows of a job. Points in time are seconds of one clock that never goes back, which the
// caller chooses.
struct Job {
  std::string id;
  std::string owner;      // who pays for it: a name for the key with which it came
  std::string batch_key;  // requests with the same one can share a run (engine/batch.h)
  Seconds estimate{1};    // of the whole job when it has a world to itself; positive
  int64_t steps = 1;      // of denoising
  int64_t pictures = 1;   // that it adds to a batch
  uint64_t bytes = 0;     // that it occupies until it has ended
  std::optional<Seconds> deadline{};
  // Whether its run may be on a world where others are under way, to alternate with them.
  bool may_join = true;
  // Whether its run can be saved between two steps and taken up again with the same result
  // (engine/session.h).
  bool may_be_saved = true;
};

}  // namespace tessera::serve
