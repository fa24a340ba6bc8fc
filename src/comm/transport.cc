#include "comm/transport.h"

#include "core/error.h"

namespace tessera::comm {

void lost_peer(int64_t rank, std::string_view why) {
  throw Error(ErrorKind::kPeer, fmt::format("rank {}", rank), fmt::format("lost: {}", why));
}

}  // namespace tessera::comm
