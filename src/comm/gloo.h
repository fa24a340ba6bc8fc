// Ranks that are connected by Gloo, through c10d: one mesh of connections for all groups.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "comm/transport.h"

namespace tessera::comm {

// Where a rank listens.
struct GlooPlace {
  std::string name;  // of a network interface, or an address of this host
  bool is_interface = true;
};

// Connects this rank to all others, who meet at the store. `timeout`: how long a rank may give
// no sign of life, and of connecting, for which there are at least five seconds. Throws what c10d throws.
std::shared_ptr<Fabric> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t size,
                                     const GlooPlace& place, std::chrono::milliseconds timeout);

// The first sentence of what Gloo says, without the place in its source and what stands before that.
std::string gloo_reason(std::string_view what);

}  // namespace tessera::comm
