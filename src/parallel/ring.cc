#include "parallel/ring.h"

#include "comm/collectives.h"
#include "core/error.h"

namespace tessera::parallel {

void ring_pass(const at::Tensor& own, std::span<const int64_t> lengths, const comm::Group& group,
               const std::function<void(const at::Tensor& block)>& visit) {
  TESSERA_CHECK(static_cast<int64_t>(lengths.size()) == group.size, "{} blocks for {} ranks", lengths.size(),
                group.size);
  at::Tensor block = own;
  const int64_t next = (group.rank + 1) % group.size, previous = (group.rank + group.size - 1) % group.size;
  for (int64_t hop = 0; hop < group.size; ++hop) {
    at::Tensor arriving;
    comm::Pending pending;
    if (hop + 1 < group.size) {
      const int64_t owner = (group.rank + group.size - hop - 1) % group.size;
      std::vector<int64_t> shape = own.sizes().vec();
      shape[0] = lengths[static_cast<size_t>(owner)];
      arriving = at::empty(shape, own.options());
      pending = comm::send_receive(block, next, arriving, previous, group);
    }
    visit(block);
    pending.wait();
    block = arriving;
  }
}

}  // namespace tessera::parallel
