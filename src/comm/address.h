// Determines how other hosts can reach this one.
#pragma once

#include <string>

namespace tessera::comm {

// Returns whether `host`, a name or an address, means the loopback device.
bool is_loopback(const std::string& host);

// Returns whether `host` is an address that stands for all addresses of a host, such as "0.0.0.0" or "::".
bool is_wildcard(const std::string& host);

// Throws Error(kPeer) unless `host`, a name or an address, has an address.
void require_address(const std::string& host);

// Returns this host's address on the route to `host` (a name or an address), such as "10.0.0.2". Sends
// nothing. Throws Error(kPeer) if there is no route.
std::string address_towards(const std::string& host);

}  // namespace tessera::comm
