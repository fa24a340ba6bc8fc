// Where a run ends before its end: all ranks must stop at the same place, or some would wait for others for
// ever.
#pragma once

#include <deque>
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
  // Returns when every rank has heard of all that was asked.
  void finish();

 private:
  comm::Group group_;
  std::deque<comm::Pending> sent_;
};

}  // namespace tessera::engine
