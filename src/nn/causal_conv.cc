#include "nn/causal_conv.h"

#include <ATen/Functions.h>

#include <utility>

#include "core/error.h"

namespace tessera::nn {

CausalConv3d::CausalConv3d(const weights::Scope& scope, int64_t in, int64_t out, Options options)
    : time_stride_(options.time_stride) {
  const int64_t k = options.kernel, pad = (k - 1) / 2;
  const at::Tensor weight = ops::Conv2d::reading(scope, {out, in, k, k}, /*stride=*/1, {pad, pad})
                                .tensor("weight", {out, in, k, k, k});
  const at::Tensor bias = options.bias ? scope.tensor("bias", {out}) : at::Tensor();
  for (int64_t i = 0; i < k; ++i) {
    taps_.emplace_back(scope, weight.select(2, i), i + 1 == k ? bias : at::Tensor(), /*stride=*/1,
                       std::array<int64_t, 2>{pad, pad});
  }
}

// Output t reads the frames t * stride - before + i, one for each tap i; frames before the first are left
// out.
at::Tensor CausalConv3d::operator()(const at::Tensor& x, const Rows& rows) const {
  const auto taps = static_cast<int64_t>(taps_.size());
  const int64_t before = taps == 1 ? 0 : taps - time_stride_;
  const int64_t frames = (x.size(0) + before - taps) / time_stride_ + 1;
  TESSERA_CHECK(x.size(0) + before >= taps, "{} frames for a kernel of {}", x.size(0), taps);
  const auto part = [&](const Range& range) { return x.narrow(2, range.begin, range.length); };
  const std::optional<ops::Halo> halo =
      rows.halo(x, {.kernel = taps_[0].kernel[0], .stride = 1, .padding = taps_[0].padding[0]}, part);
  // Returns a tap's input for the outputs from `first` on.
  const auto input = [&](int64_t tap, int64_t first) {
    const auto of_frames = [&](const at::Tensor& all) {
      const int64_t begin = first * time_stride_ - before + tap;
      return all.defined()
                 ? all.slice(0, begin, begin + (frames - first - 1) * time_stride_ + 1, time_stride_)
                 : all;
    };
    ops::ConvInput one{.x = of_frames(x), .blocks = rows.blocks()};
    if (halo) one.halo = ops::Halo{of_frames(halo->above), of_frames(halo->below)};
    return one;
  };
  at::Tensor y = taps_.back()(input(taps - 1, 0));
  for (int64_t tap = 0; tap + 1 < taps; ++tap) {
    // This is the first output for which the tap's frame exists.
    const int64_t first = std::max<int64_t>(0, (before - tap + time_stride_ - 1) / time_stride_);
    if (first >= frames) continue;
    at::Tensor sum = y.narrow(0, first, frames - first);
    taps_[static_cast<size_t>(tap)].add_to(sum, input(tap, first));
  }
  return y;
}

at::Tensor clip_norm(const ops::GroupNorm& norm, at::Tensor x, const Rows& rows) {
  const at::Tensor by_frame = rows.moments(norm.moments(x)).to(at::kDouble);  // [T, groups, 2]
  const at::Tensor means = by_frame.select(-1, 0), variances = by_frame.select(-1, 1);
  const at::Tensor mean = means.mean(0, /*keepdim=*/true);
  const at::Tensor variance = (variances + (means - mean).square()).mean(0, /*keepdim=*/true);
  const ops::ChannelMaps maps =
      norm.maps(at::stack({mean, variance}, -1).expand(by_frame.sizes()).contiguous());
  return norm.apply_over(maps, std::move(x));
}

}  // namespace tessera::nn
