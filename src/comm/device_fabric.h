// Connects ranks whose tensors are on devices through c10d communicators: NCCL between GPUs.
//
// A communicator executes its operations in order, each only when the peers have reached it too. Operations
// that all ranks of a group post together therefore go through one communicator of the group, and operations
// of two ranks through one communicator per direction. With a single one, two ranks that each send before
// they receive would wait for each other forever.
//
// Creating a communicator blocks until its other ranks do the same, and waits for work queued on the device.
// If it were created at the first message, two neighbouring stages of PipeFusion would deadlock, because each
// first receives from the other. Therefore Transport::connect() creates all of them before the first message.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "comm/transport.h"

namespace c10d {
class Backend;
}

namespace tessera::comm {

// Creates rank `rank` of a communicator of `size` ranks, which identify it by `name`. Blocks until all of
// them have called it. Throws Error(kPeer) when one does not.
using MakeCommunicator = std::function<c10::intrusive_ptr<c10d::Backend>(const std::string& name, int rank,
                                                                         int size, at::Device device)>;

// Tensors on devices of type `type` go through communicators. All other tensors, which control the run, go
// through `host`, which also detects lost ranks; it may be empty if there are no such tensors. `rank` is this
// rank's number in the world. A communicator must support coalescing, all-reduce and all-gather.
//
// A device waits for a lost peer forever, and so does a thread that waits for the device, for example in a
// copy. A thread therefore watches the other ranks while operations are in progress, and aborts all
// communicators when a rank is lost: queued operations then end, their results are undefined, and every later
// call throws.
std::shared_ptr<Fabric> connect_devices(int64_t rank, at::DeviceType type, MakeCommunicator make,
                                        std::shared_ptr<Fabric> host);

}  // namespace tessera::comm
