#include "comm/transport.h"

#include "comm/peer_error.h"
#include "core/text.h"

namespace tessera::comm {

std::unique_ptr<Exchange> Transport::post_sum(const at::Tensor& /*x*/) {
  TESSERA_CHECK(false, "no collectives of its own");
}

std::unique_ptr<Exchange> Transport::post_gather(const at::Tensor& /*part*/, const at::Tensor& /*whole*/) {
  TESSERA_CHECK(false, "no collectives of its own");
}

void lost_peer(int64_t rank, std::string_view why) {
  throw PeerError(rank, fmt::format("lost: {}", why));
}

void silent_peer(int64_t rank, std::chrono::milliseconds timeout) {
  lost_peer(rank, "no sign of life within " + seconds_text(timeout));
}

}  // namespace tessera::comm
