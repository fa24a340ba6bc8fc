// The status of ranks, in memory that they share with their supervisor, so that it can be read even after a
// rank has died.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "comm/transport.h"
#include "engine/observer.h"
#include "launch/failure.h"

namespace tessera::launch {

// Written only by its own rank. It contains no pointers, because another process reads it.
class RankStatus {
 public:
  // The rank has joined, or begins another request; whatever a failed request left in flight is over.
  void preparing();
  void started(engine::Phase stage);
  void step_done(int64_t done) { step_ = done + 1; }  // of Phase::kDenoise
  void finishing() { phase_ = kFinishing; }
  void wrote_file() { has_files_ = true; }
  bool has_files() const { return has_files_; }
  void collective_began(const comm::Collective& collective);
  void collective_ended() { --under_way_; }
  void failed(const Failure& failure);
  // The same, async-signal-safe.
  void failed(int exit_code, std::string_view message, std::optional<int64_t> peer) noexcept;

  // Returns where the rank is: "at step 3, in all_to_all (ulysses)".
  std::string place() const;
  std::optional<Failure> failure() const;

 private:
  friend class StatusTable;
  // The values of engine::Phase lie between these.
  static constexpr int kJoining = -2, kPreparing = -1, kFinishing = 100;

  std::atomic<int> phase_{kJoining};
  std::atomic<int64_t> step_{0};
  std::atomic<bool> has_files_{false};
  // The last collective, written alternately to two texts, so that a rank that dies while writing leaves the
  // previous one.
  std::array<std::array<char, 64>, 2> operations_{};
  std::atomic<int> operation_{-1};
  std::atomic<int> under_way_{0};
  std::array<char, 4096> message_{};
  std::atomic<int64_t> peer_{-1};
  std::atomic<int> exit_code_{0};
};

// Shared by this process and its forks, which are the ranks.
class StatusTable {
 public:
  explicit StatusTable(int64_t ranks);  // throws std::bad_alloc
  ~StatusTable();
  StatusTable(const StatusTable&) = delete;
  StatusTable& operator=(const StatusTable&) = delete;

  RankStatus& rank(int64_t rank);
  const RankStatus& rank(int64_t rank) const;

  // Asks the ranks to end. The first rank reads this and tells the others at which step to end.
  void ask_to_end() { shared_->must_end = true; }
  bool must_end() const { return shared_->must_end; }

 private:
  struct Shared {
    std::atomic<bool> must_end{false};
  };

  int64_t ranks_;
  size_t bytes_;
  Shared* shared_ = nullptr;
  RankStatus* slots_ = nullptr;
};

}  // namespace tessera::launch
