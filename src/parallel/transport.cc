#include "parallel/transport.h"

#include "core/error.h"

namespace tessera::parallel {

void lost_peer(int64_t rank, std::string_view why) {
  throw Error(ErrorKind::kPeer, fmt::format("rank {}", rank), fmt::format("lost: {}", why));
}

}  // namespace tessera::parallel
