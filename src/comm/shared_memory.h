// Ranks of one host, whose messages go through memory that they share.
//
// A sender copies a message into a file in memory and rings; the receiver copies it out. No message waits for
// the other side, no thread and no system call moves bytes, so a rank that computes is not disturbed by what
// others send. Measured with bench/ranks.py against Gloo over the loopback device: docs/parallel.md.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "comm/local_peers.h"
#include "comm/transport.h"

namespace tessera::comm {

// Connects this rank to the others of its host: connect_local_peers() or greet_local_peers() of
// comm/local_peers.h, bound to all but the files that are handed over.
using ConnectPeers = std::function<PeerConnections(const FileForPeer&)>;

// Messages to the peers that `connect` finds go through memory, those to other hosts through `others`, which
// may be empty when there are none. `timeout`: how long a rank may give no sign of life. All ranks of the
// host must call; each uses the result from one thread. Throws Error(kPeer).
std::shared_ptr<Fabric> share_memory(const ConnectPeers& connect, std::shared_ptr<Fabric> others,
                                     std::chrono::milliseconds timeout);

}  // namespace tessera::comm
