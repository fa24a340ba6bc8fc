// Connects the ranks of one host through memory that they share.
//
// A sender copies a message into a memory file and wakes the receiver, which copies it out. Sends do not wait
// for the receiver, and neither a helper thread nor a system call moves the bytes, so messages do not disturb
// a computing rank. bench/ranks.py compares it with Gloo over the loopback device: docs/parallel.md.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "comm/local_peers.h"
#include "comm/transport.h"

namespace tessera::comm {

// Connects this rank to the others of its host: connect_local_peers() or greet_local_peers() of
// comm/local_peers.h with all arguments bound except the files to send.
using ConnectPeers = std::function<PeerConnections(const FileForPeer&)>;

// Messages to the peers that `connect` finds go through shared memory, those to other hosts through `others`,
// which may be empty if there are none. `timeout` limits how long a rank may give no sign of life. All ranks
// of the host must call it, and each uses the result from one thread. Throws Error(kPeer).
std::shared_ptr<Fabric> share_memory(const ConnectPeers& connect, std::shared_ptr<Fabric> others,
                                     std::chrono::milliseconds timeout);

}  // namespace tessera::comm
