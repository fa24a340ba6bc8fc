// How the ranks of one host find each other, and hand each other memory.
//
// Only processes of one user do: both sides ask the kernel who the other is before a descriptor is sent or
// taken.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/descriptor.h"
#include "core/clock.h"

namespace tessera::comm {

// Where others of this host reach a rank. Made before ranks know of each other; its text is what they need.
class LocalEndpoint {
 public:
  LocalEndpoint();  // throws Error(kPeer) when the system refuses a socket

  // The host, as the kernel and the network that a process sees, and a name there that nobody guesses.
  const std::string& text() const { return text_; }
  int socket() const { return socket_.number(); }

 private:
  std::string text_;
  Descriptor socket_;
};

// Whether ranks with these texts share a host.
bool same_host(const std::string& endpoint, const std::string& other);

// Another rank of this host: a connection, which ends when that rank does, and the file that it handed over.
struct PeerConnection {
  Descriptor socket;
  Descriptor file;
};
using PeerConnections = std::map<int64_t, PeerConnection>;  // by number in the world
using FileForPeer = std::function<int(int64_t peer)>;

// Connects to all others of this host; `endpoints` are the texts of all ranks of the world, `file_for` gives
// the file to hand to each. All ranks of the host must call. Throws Error(kPeer) when one does not come, or
// belongs to another user.
PeerConnections connect_local_peers(int64_t rank, const LocalEndpoint& own,
                                    const std::vector<std::string>& endpoints, const FileForPeer& file_for,
                                    Deadline deadline);

// The same over sockets that are connected already (by number in the world), as a process that started all
// ranks hands them out.
PeerConnections greet_local_peers(int64_t rank, std::map<int64_t, Descriptor> sockets,
                                  const FileForPeer& file_for, Deadline deadline);

// The first message on a connection, with which the file travels.
struct Greeting {
  int64_t from = -1, to = -1;  // numbers in the world
};
// Nothing when the bytes are none of this program's version.
std::optional<Greeting> parse_greeting(std::span<const std::byte> bytes);

}  // namespace tessera::comm
