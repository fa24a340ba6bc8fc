// Provides communicators between threads that keep NCCL's order, so that tests find deadlocks which would
// occur on GPUs.
#pragma once

#include <chrono>
#include <memory>

#include "comm/device_fabric.h"

namespace tessera::comm {

// Connects the operations of all ranks. Making a communicator blocks until all its ranks make it. An
// operation begins when all earlier ones of its rank on the same communicator have finished; a message moves
// when the operations of both sides have begun.
class OrderedCommunicators {
 public:
  // `timeout` limits each operation, and the making of a communicator.
  explicit OrderedCommunicators(std::chrono::milliseconds timeout);
  ~OrderedCommunicators();

  MakeCommunicator maker();
  // Makes all current and later operations fail.
  void fail();

  class Shared;

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace tessera::comm
