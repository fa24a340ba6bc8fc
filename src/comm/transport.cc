#include "comm/transport.h"

#include "core/error.h"

namespace tessera::comm {

void lost_peer(int64_t rank, std::string_view why) {
  throw Error(ErrorKind::kPeer, fmt::format("rank {}", rank), fmt::format("lost: {}", why));
}

void silent_peer(int64_t rank, std::chrono::milliseconds timeout) {
  lost_peer(rank,
            fmt::format("no sign of life within {:g} s", std::chrono::duration<double>(timeout).count()));
}

}  // namespace tessera::comm
