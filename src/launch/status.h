// Where ranks stand, in memory that they share with the process that supervises them: it can still be read
// when a rank is dead.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "comm/descriptor.h"
#include "comm/transport.h"
#include "engine/observer.h"
#include "launch/failure.h"

namespace tessera::launch {

// Written by its rank alone. Holds no pointer, for it is read by another process.
class RankStatus {
 public:
  void joined() { phase_ = kPreparing; }
  void started(engine::Phase stage);
  void step_done(int64_t done) { step_ = done + 1; }  // of Phase::kDenoise
  void finishing() { phase_ = kFinishing; }
  void collective_began(const comm::Collective& collective);
  void collective_ended() { --under_way_; }
  void failed(const Failure& failure);

  // "at step 3, in all_to_all (ulysses)".
  std::string place() const;
  std::optional<Failure> failure() const;

 private:
  friend class StatusTable;
  // Stages lie between.
  static constexpr int kJoining = -2, kPreparing = -1, kFinishing = 100;

  std::atomic<int> phase_{kJoining};
  std::atomic<int64_t> step_{0};
  std::atomic<int64_t> times_asked_{0};  // whether the run is to end
  // The last operation, in one of two places, so that a rank that dies while it writes leaves the one before.
  std::array<std::array<char, 64>, 2> operations_{};
  std::atomic<int> operation_{-1};
  std::atomic<int> under_way_{0};
  std::array<char, 4096> message_{};
  std::atomic<int64_t> peer_{-1};
  std::atomic<int> exit_code_{0};
};

// Shared by all ranks and who started them.
class StatusTable {
 public:
  explicit StatusTable(int64_t ranks);                // throws std::bad_alloc
  StatusTable(comm::Descriptor file, int64_t ranks);  // that of another process; throws Error(kPeer)
  ~StatusTable();
  StatusTable(const StatusTable&) = delete;
  StatusTable& operator=(const StatusTable&) = delete;

  // A file in memory, to be inherited.
  int file() const { return file_.number(); }
  RankStatus& rank(int64_t rank);
  const RankStatus& rank(int64_t rank) const;

  // Asks the ranks to end. They ask whether they should at the same points of the same program, so the number
  // of the question is what they can agree on: all end at the next that none has asked yet.
  void ask_to_end();
  // For the ranks: whether to end now.
  bool must_end(int64_t rank);

 private:
  struct Shared {
    std::atomic<int64_t> end_at{std::numeric_limits<int64_t>::max()};
  };
  static constexpr int64_t kDeciding = -1;

  void map();

  comm::Descriptor file_;
  int64_t ranks_;
  size_t bytes_;
  Shared* shared_ = nullptr;
  RankStatus* slots_ = nullptr;
};

}  // namespace tessera::launch
