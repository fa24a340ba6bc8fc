#include "parallel/dsp.h"

#include <ATen/Functions.h>

#include <vector>

#include "comm/collectives.h"
#include "core/error.h"

namespace tessera::parallel {

at::Tensor tokens_to_samples(const at::Tensor& x, std::span<const int64_t> tokens, const comm::Group& group) {
  if (group.size == 1) return x;
  TESSERA_CHECK(x.size(1) == tokens[static_cast<size_t>(group.rank)], "{} tokens, the cut says {}", x.size(1),
                tokens[static_cast<size_t>(group.rank)]);
  const std::vector<Range> samples = group.parts(x.size(0));
  const at::Tensor whole = x.contiguous();
  std::vector<at::Tensor> sends, receives;
  for (int64_t peer = 0; peer < group.size; ++peer) {
    const Range& range = samples[static_cast<size_t>(peer)];
    sends.push_back(whole.narrow(0, range.begin, range.length));
    const int64_t own = samples[static_cast<size_t>(group.rank)].length;
    receives.push_back(peer == group.rank
                           ? sends.back()
                           : at::empty({own, tokens[static_cast<size_t>(peer)], x.size(2)}, x.options()));
  }
  comm::all_to_all(std::move(sends), receives, group).wait();
  return at::concat(receives, 1);
}

at::Tensor samples_to_tokens(const at::Tensor& x, int64_t samples, std::span<const int64_t> tokens,
                             const comm::Group& group) {
  if (group.size == 1) return x;
  const std::vector<Range> ranges = group.parts(samples);
  at::Tensor whole = at::empty({samples, tokens[static_cast<size_t>(group.rank)], x.size(2)}, x.options());
  std::vector<at::Tensor> sends, receives;
  int64_t begin = 0;
  for (int64_t peer = 0; peer < group.size; ++peer) {
    const auto i = static_cast<size_t>(peer);
    sends.push_back(x.narrow(1, begin, tokens[i]).contiguous());
    begin += tokens[i];
    receives.push_back(whole.narrow(0, ranges[i].begin, ranges[i].length));
  }
  comm::all_to_all(std::move(sends), std::move(receives), group).wait();
  return whole;
}

}  // namespace tessera::parallel
