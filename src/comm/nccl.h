// Connects the GPUs of different ranks by NCCL, through c10d.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>

#include "comm/device_fabric.h"

namespace c10d {
class Store;
}

namespace tessera::comm {

// Returns whether this build supports it: libtorch has CUDA, and NCCL's headers were found.
bool has_nccl();

// Makes c10d, through the environment, leave lost peers to this program (see device_fabric.h). Must be called
// before any thread starts.
void prepare_nccl();

// Creates communicators whose ranks meet at the store; each rank uses its own GPU. `timeout` limits the
// meeting.
MakeCommunicator nccl_communicators(const c10::intrusive_ptr<c10d::Store>& store,
                                    std::chrono::milliseconds timeout);

}  // namespace tessera::comm
