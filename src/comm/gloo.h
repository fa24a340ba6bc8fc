// Connects ranks by Gloo, through c10d, with one mesh of connections for all groups.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "comm/transport.h"

namespace c10d {
class Store;
}

namespace tessera::comm {

// Where a rank listens.
struct GlooPlace {
  std::string name;  // a network interface, or an address of this host
  bool is_interface = true;
};

// Connects this rank to all others through the store. `timeout` limits how long a rank may give no sign of
// life, and the time to connect, which is at least five seconds. Throws whatever c10d throws.
std::shared_ptr<Fabric> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t size,
                                     const GlooPlace& place, std::chrono::milliseconds timeout);

// Returns the first sentence of Gloo's message, without the source location and what precedes it.
std::string gloo_reason(std::string_view what);

}  // namespace tessera::comm
