// Ranks of one host, whose messages go through memory that they share.
//
// A sender copies a message into a file in memory and rings; the receiver copies it out. No message waits for
// the other side, no thread and no system call moves bytes, so a rank that computes is not disturbed by what
// others send. Measured with bench/ranks.py against Gloo over the loopback device: docs/parallel.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/meeting.h"
#include "comm/transport.h"

namespace tessera::comm {

// Connects this rank to all others of its host; `places` are the texts of all ranks of the world. Messages to
// other hosts go through `others`, which may be empty when there are none. `timeout`: how long a rank may
// give no sign of life, and of meeting. All ranks of the host must call; each uses the result from one
// thread. Throws Error(kPeer).
std::shared_ptr<Fabric> share_memory(int64_t rank, const MeetingPlace& own,
                                     const std::vector<std::string>& places, std::shared_ptr<Fabric> others,
                                     std::chrono::milliseconds timeout);

}  // namespace tessera::comm
