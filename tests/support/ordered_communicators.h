// Communicators between threads that keep NCCL's order: for tests, which thereby see a deadlock that GPUs
// would have.
#pragma once

#include <chrono>
#include <memory>

#include "comm/device_fabric.h"

namespace tessera::comm {

// Where the operations of all ranks meet. To make a communicator blocks until all its ranks do. An operation
// begins when all that its rank posted before on the same communicator are over; a message moves when the
// operations of both sides have begun.
class OrderedCommunicators {
 public:
  // `timeout`: of each operation, and of meeting.
  explicit OrderedCommunicators(std::chrono::milliseconds timeout);
  ~OrderedCommunicators();

  MakeCommunicator maker();
  // Nothing more will come: whoever waits hears of it.
  void fail();

  class Shared;

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace tessera::comm
