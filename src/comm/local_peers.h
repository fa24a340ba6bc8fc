// How the ranks of one host find each other and share memory.
//
// Only processes of the same user do so: both sides ask the kernel for the other's user before they send or
// accept a descriptor.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/system_call.h"

namespace tessera::comm {

// Where the other ranks of this host can reach this one. It is created before ranks know about each other,
// because they need its text.
class LocalEndpoint {
 public:
  LocalEndpoint();  // throws Error(kPeer) when the system refuses a socket

  // The host, identified by its boot id and network namespace, and an unguessable socket name on it.
  const std::string& text() const { return text_; }
  int socket() const { return socket_.number(); }

 private:
  std::string text_;
  Descriptor socket_;
};

// Returns the text of an endpoint of this host without a socket; it identifies no host if the kernel does not
// provide the ids.
std::string this_host();

// Returns whether ranks with these texts share a host.
bool same_host(const std::string& endpoint, const std::string& other);

// Holds a connection to another rank of this host, which closes when that rank ends, and the file that it
// sent.
struct PeerConnection {
  Descriptor socket;
  Descriptor file;
};
using PeerConnections = std::map<int64_t, PeerConnection>;  // by rank in the world
using FileForPeer = std::function<int(int64_t peer)>;

// Connects to all other ranks of this host. `endpoints` are the texts of all ranks of the world; `file_for`
// returns the file to send to each peer. All ranks of the host must call it. Throws Error(kPeer) if one does
// not arrive or belongs to another user.
PeerConnections connect_local_peers(int64_t rank, const LocalEndpoint& own,
                                    const std::vector<std::string>& endpoints, const FileForPeer& file_for,
                                    Deadline deadline);

// Does the same over sockets (by rank in the world) that have already been connected by a process that
// started all ranks.
PeerConnections greet_local_peers(int64_t rank, std::map<int64_t, Descriptor> sockets,
                                  const FileForPeer& file_for, Deadline deadline);

// The first message on a connection; the file travels with it.
struct Greeting {
  int64_t from = -1, to = -1;  // ranks in the world
};
// Returns nothing if the bytes are not a greeting of this protocol version.
std::optional<Greeting> parse_greeting(std::span<const std::byte> bytes);

}  // namespace tessera::comm
