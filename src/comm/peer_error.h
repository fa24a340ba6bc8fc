// The error for a lost peer; it carries the peer's rank.
#pragma once

#include <cstdint>
#include <string>

#include "core/error.h"

namespace tessera::comm {

// "[rank 3] lost: ...", with exit code 4.
class PeerError : public Error {
 public:
  // `rank` is the rank in the world.
  PeerError(int64_t rank, const std::string& what)
      : Error(ErrorKind::kPeer, fmt::format("rank {}", rank), what), rank_(rank) {}

  int64_t rank() const { return rank_; }

 private:
  int64_t rank_;
};

}  // namespace tessera::comm
