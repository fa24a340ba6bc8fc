// Where other hosts find this one.
#pragma once

#include <string>

namespace tessera::comm {

// Whether this names the loopback device: a name or an address.
bool is_loopback(const std::string& host);

// This host's own address on the way to `host`, a name or an address: "10.0.0.2". Nothing is sent. Throws
// Error(kPeer) where no way leads.
std::string address_towards(const std::string& host);

}  // namespace tessera::comm
