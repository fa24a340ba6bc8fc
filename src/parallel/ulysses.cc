#include "parallel/ulysses.h"

#include "comm/collectives.h"
#include "core/error.h"

namespace tessera::parallel {

at::Tensor tokens_to_heads(const at::Tensor& x, int64_t parts, int64_t heads, std::span<const int64_t> tokens,
                           const comm::Group& group) {
  if (group.size == 1) return x;
  const int64_t batch = x.size(0), depth = x.size(2) / (parts * heads);
  TESSERA_CHECK(x.size(1) == tokens[static_cast<size_t>(group.rank)], "{} tokens, the cut says {}", x.size(1),
                tokens[static_cast<size_t>(group.rank)]);
  int64_t all = 0;
  for (const int64_t count : tokens) all += count;
  const std::vector<Range> ranges = group.parts(heads);
  const int64_t own = ranges[static_cast<size_t>(group.rank)].length;

  const at::Tensor whole = at::empty({all, batch, parts * own * depth}, x.options());
  const at::Tensor by_head = x.unflatten(2, {parts, heads, depth}).transpose(0, 1);  // [n, B, parts, H, D]
  std::vector<at::Tensor> sends, receives;
  int64_t begin = 0;
  for (int64_t peer = 0; peer < group.size; ++peer) {
    const size_t i = static_cast<size_t>(peer);
    receives.push_back(whole.narrow(0, begin, tokens[i]));
    begin += tokens[i];
    const at::Tensor share = by_head.narrow(3, ranges[i].begin, ranges[i].length);
    if (peer == group.rank) {
      receives[i].view({tokens[i], batch, parts, own, depth}).copy_(share);
      sends.push_back(receives[i]);
    } else {
      sends.push_back(share.contiguous());
    }
  }
  comm::all_to_all(std::move(sends), std::move(receives), group).wait();
  return whole.transpose(0, 1);
}

at::Tensor heads_to_tokens(const at::Tensor& x, int64_t heads, std::span<const int64_t> tokens,
                           const comm::Group& group) {
  const std::vector<Range> ranges = group.parts(heads);
  const size_t self = static_cast<size_t>(group.rank);
  const int64_t batch = x.size(1), depth = x.size(2) / ranges[self].length;
  std::vector<at::Tensor> sends, receives;
  int64_t begin = 0;
  for (int64_t peer = 0; peer < group.size; ++peer) {
    const size_t i = static_cast<size_t>(peer);
    sends.push_back(x.narrow(0, begin, tokens[i]));
    begin += tokens[i];
    receives.push_back(peer == group.rank
                           ? sends[i]
                           : at::empty({tokens[self], batch, ranges[i].length * depth}, x.options()));
  }
  comm::all_to_all(std::move(sends), receives, group).wait();
  at::Tensor joined = at::empty({batch, tokens[self], heads * depth}, x.options());
  for (size_t i = 0; i < receives.size(); ++i) {
    joined.narrow(2, ranges[i].begin * depth, ranges[i].length * depth).copy_(receives[i].transpose(0, 1));
  }
  return joined;
}

}  // namespace tessera::parallel
