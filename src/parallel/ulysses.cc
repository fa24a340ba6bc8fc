#include "parallel/ulysses.h"

#include <ATen/Functions.h>

#include "comm/collective_values.h"
#include "comm/collectives.h"
#include "core/error.h"

namespace tessera::parallel {

std::vector<at::Tensor> tokens_to_heads(const std::vector<at::Tensor>& parts, int64_t units,
                                        std::span<const int64_t> tokens, const comm::Group& group) {
  if (group.size == 1) return parts;
  const comm::CollectiveScope scope;
  const int64_t batch = parts[0].size(0);
  TESSERA_CHECK(parts[0].size(1) == tokens[static_cast<size_t>(group.rank)], "{} tokens, the cut says {}",
                parts[0].size(1), tokens[static_cast<size_t>(group.rank)]);
  int64_t all = 0, unit = 0;  // features per unit, summed over all parts
  for (const int64_t count : tokens) all += count;
  for (const at::Tensor& part : parts) unit += part.size(2) / units;
  const std::vector<Range> ranges = group.parts(units);
  const int64_t own = ranges[static_cast<size_t>(group.rank)].length;

  const at::Tensor whole = at::empty({all, batch, own * unit}, parts[0].options());
  std::vector<at::Tensor> sends, receives;
  int64_t begin = 0;
  for (int64_t peer = 0; peer < group.size; ++peer) {
    const size_t i = static_cast<size_t>(peer);
    receives.push_back(whole.narrow(0, begin, tokens[i]));
    begin += tokens[i];
    sends.push_back(peer == group.rank
                        ? receives[i]
                        : at::empty({tokens[static_cast<size_t>(group.rank)], batch, ranges[i].length * unit},
                                    whole.options()));
    int64_t to = 0;
    for (const at::Tensor& part : parts) {
      const Range share = times(ranges[i], part.size(2) / units);
      sends[i].narrow(2, to, share.length).copy_(part.narrow(2, share.begin, share.length).transpose(0, 1));
      to += share.length;
    }
  }
  comm::all_to_all(std::move(sends), std::move(receives), group).wait();
  std::vector<at::Tensor> result;
  int64_t from = 0;
  for (const at::Tensor& part : parts) {
    const int64_t width = own * (part.size(2) / units);
    result.push_back(whole.transpose(0, 1).narrow(2, from, width));
    from += width;
  }
  scope.record({"tokens_to_heads", group, parts, result});
  return result;
}

at::Tensor heads_to_tokens(const at::Tensor& x, int64_t width, int64_t units, std::span<const int64_t> tokens,
                           const comm::Group& group) {
  const comm::CollectiveScope scope;
  const std::vector<Range> ranges = times(group.parts(units), width / units);
  const size_t self = static_cast<size_t>(group.rank);
  const int64_t batch = x.size(1);
  std::vector<at::Tensor> sends, receives;
  int64_t begin = 0;
  for (int64_t peer = 0; peer < group.size; ++peer) {
    const size_t i = static_cast<size_t>(peer);
    sends.push_back(x.narrow(0, begin, tokens[i]));
    begin += tokens[i];
    receives.push_back(peer == group.rank ? sends[i]
                                          : at::empty({tokens[self], batch, ranges[i].length}, x.options()));
  }
  comm::all_to_all(std::move(sends), receives, group).wait();
  at::Tensor joined = at::empty({batch, tokens[self], width}, x.options());
  for (size_t i = 0; i < receives.size(); ++i)
    joined.narrow(2, ranges[i].begin, ranges[i].length).copy_(receives[i].transpose(0, 1));
  if (group.size > 1) scope.record({"heads_to_tokens", group, {x}, {joined}});
  return joined;
}

}  // namespace tessera::parallel
