#include "engine/agreement.h"

#include <ATen/Functions.h>

#include <utility>

namespace tessera::engine {
namespace {

// How many bytes may be under way to each rank; where a rank is so far behind, the first one waits for it.
constexpr int64_t kMostUnderWay = 64;

}  // namespace

Agreement::Agreement(comm::Group group) : group_(std::move(group)) {
  group_.hooks.reset();
}

bool Agreement::ask(const std::function<bool()>& wish) {
  if (group_.rank == 0) {
    const bool yes = wish && wish();
    if (group_.size == 1) return yes;
    const at::Tensor said = at::full({1}, yes ? 1 : 0, at::kByte);
    for (int64_t peer = 1; peer < group_.size; ++peer) sent_.push_back(comm::send(said, peer, group_));
    while (static_cast<int64_t>(sent_.size()) > kMostUnderWay * (group_.size - 1)) {
      sent_.front().wait();
      sent_.pop_front();
    }
    return yes;
  }
  at::Tensor said = at::empty({1}, at::kByte);
  comm::receive(said, 0, group_).wait();
  return said.item<uint8_t>() != 0;
}

void Agreement::finish() {
  for (; !sent_.empty(); sent_.pop_front()) sent_.front().wait();
}

}  // namespace tessera::engine
