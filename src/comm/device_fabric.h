// Ranks whose tensors lie on devices, connected by communicators of c10d: NCCL between GPUs.
//
// A communicator carries out one operation after the other, and none before the peers have come to the other
// side of it. What all ranks of a group post together therefore goes through one communicator of the group;
// what two ranks post alone goes through one for each direction. With a single one, a rank that sends before
// it receives and a peer that does the same would wait for each other without end.
//
// To make one blocks until its other ranks do the same, and waits for what the device has queued. Made when
// the first message wants it, a stage of PipeFusion and the next one would wait for each other without end:
// each first receives, from the other. So all are made before the first message, by Transport::connect().
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "comm/transport.h"

namespace tessera::comm {

// Rank `rank` of a communicator of `size` ranks that know it by `name`. Blocks until all of them have asked
// for it. Throws Error(kPeer) when one does not.
using MakeCommunicator = std::function<c10::intrusive_ptr<c10d::Backend>(const std::string& name, int rank,
                                                                         int size, at::Device device)>;

// Tensors on devices of this type go through communicators, all others, which control the run, through
// `host`, which also tells whether ranks live; nothing where there are no such tensors. `rank` is this rank's
// number in the world. A communicator must offer coalescing, all-reduce and all-gather.
//
// A device waits for a lost peer without end, and whoever waits for the device does too, in a copy perhaps.
// So a thread looks after the other ranks while operations are under way, and aborts all communicators when
// one is lost: what was queued ends, its results are nobody's, and every call from then on throws.
std::shared_ptr<Fabric> connect_devices(int64_t rank, at::DeviceType type, MakeCommunicator make,
                                        std::shared_ptr<Fabric> host);

}  // namespace tessera::comm
