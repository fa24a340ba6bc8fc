// All ranks of a run must agree on whether it ends early and on whether a phase succeeded. Otherwise some
// would wait for others forever.
#pragma once

#include <deque>
#include <exception>
#include <functional>

#include "comm/collectives.h"

namespace tessera::engine {

// Rank 0 of a group decides, and the others follow. Rank 0 waits for nobody: it sends each rank a byte,
// usually before that rank asks.
class Agreement {
 public:
  // Hooks do not see the messages of an agreement.
  explicit Agreement(comm::Group group);

  // Returns what `wish` returns on rank 0 (false if empty); other ranks do not call theirs. All ranks of the
  // group must ask the same number of times. If rank 0's wish throws, the others receive yes.
  bool ask(const std::function<bool()>& wish);
  // Returns the last answer: true if all ranks stopped where they asked.
  bool has_said_yes() const { return has_said_yes_; }
  // Returns the value of rank 0. All ranks must call.
  int64_t follow(int64_t own);
  // Returns the least of the ranks' numbers. All ranks must call.
  int64_t least(int64_t own);
  // Returns null if no rank has failed. Otherwise it returns the exception that this rank has to throw: on a
  // rank that failed, `failure`; on the others, Error(kPeer) with the first such rank and its reason, or
  // Cancelled if no rank failed for any other reason. All ranks must call; it returns when they have done so
  // and have received all answers of ask().
  std::exception_ptr settle(const std::exception_ptr& failure);
  // Returns when every rank has received all answers of ask().
  void finish();

 private:
  void tell(bool yes);

  comm::Group group_;
  std::deque<comm::Pending> sent_;
  bool has_said_yes_ = false;
};

}  // namespace tessera::engine
