// What all ranks of a run must hold alike: where it ends before its end, and whether a stage went well. Else
// some would wait for others for ever.
#pragma once

#include <deque>
#include <exception>
#include <functional>

#include "comm/collectives.h"

namespace tessera::engine {

// What rank 0 of a group decides, and all others follow. Rank 0 waits for nobody: it tells the others in a
// byte of its own, which reaches them before they ask.
class Agreement {
 public:
  // Its messages are not among those that hooks see.
  explicit Agreement(comm::Group group);

  // What `wish` says on rank 0 (no, where it is empty); elsewhere it is not called. All ranks of the group
  // must ask equally often.
  bool ask(const std::function<bool()>& wish);
  // What rank 0 says. All ranks must call.
  int64_t follow(int64_t own);
  // Returns the least of the ranks' numbers. All ranks must call.
  int64_t least(int64_t own);
  // Whether all ranks have done their part: nothing, or on each what it has to throw; on one that failed its
  // `failure`, on the others Error(kPeer) that names it and says why. Returns when all have called.
  std::exception_ptr settle(const std::exception_ptr& failure);
  // Returns when every rank has heard of all that was asked.
  void finish();

 private:
  comm::Group group_;
  std::deque<comm::Pending> sent_;
};

}  // namespace tessera::engine
