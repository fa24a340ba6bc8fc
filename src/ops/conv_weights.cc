// How convolutions hold their weights.
#include <ATen/core/dispatch/Dispatcher.h>

#include <utility>
#include <vector>

#include "core/device.h"
#include "kernels/choices.h"
#include "ops/conv.h"

namespace tessera::ops {
namespace {

using at::IntArrayRef;
using at::Tensor;
using PackSignature = Tensor(const Tensor&, IntArrayRef, IntArrayRef, IntArrayRef, int64_t,
                             at::OptionalIntArrayRef);

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;
constexpr std::array<int64_t, 2> kNoDilation = {1, 1};
constexpr int64_t kCornerTaps = int64_t{4} * 2 * 2;  // for an upsampling convolution that is not filtered

bool can_pack(const Tensor& weight) {
  if (!weight.is_cpu() || !at::hasMKLDNN() || weight.numel() == 0) return false;
  return kernels::is_multiplied(weight.scalar_type());
}

// The additional memory of a kernel with this many taps, beyond `weight` [O, I, kh, kw], for a meta tensor
// that stands for the CPU.
Tensor room_beyond(const Tensor& weight, int64_t taps) {
  if (!weight.is_meta() || !is_for_cpu(weight.device())) return {};
  return at::empty({weight.size(0) * weight.size(1) * taps - weight.numel()}, weight.options());
}

Tensor pack(const Tensor& weight, int64_t stride, IntArrayRef padding) {
  static const auto reorder = c10::Dispatcher::singleton()
                                  .findSchemaOrThrow("mkldnn::_reorder_convolution_weight", "")
                                  .typed<PackSignature>();
  return reorder.call(weight, padding, {stride, stride}, kNoDilation, 1, std::nullopt);
}

// Combines the 3x3 taps w [O, I, 3, 3] into those of the pixels around a corner: [4 O, I, 2, 2]. Along one
// dimension, the pixel before the corner has taps 0 and 1 on the input pixel before it and tap 2 on the one
// after; the pixel after the corner has tap 0 on the one before, and taps 1 and 2 on the one after.
Tensor corner_taps(const Tensor& w) {
  const auto split = [](const Tensor& taps, int64_t dim) {
    const Tensor first = taps.select(dim, 0), middle = taps.select(dim, 1), last = taps.select(dim, 2);
    return std::array<Tensor, 2>{at::stack({first + middle, last}, dim),
                                 at::stack({first, middle + last}, dim)};
  };
  std::vector<Tensor> parts;
  for (const Tensor& rows : split(w, 2)) {
    for (const Tensor& both : split(rows, 3)) parts.push_back(both);
  }
  return at::concat(parts);
}

// Reads fp32 weights, so that sums of taps are rounded to the dtype of the layer only once.
Conv2d corner_conv(const weights::Scope& scope, int64_t channels) {
  const Tensor taps = scope.with_dtype(at::kFloat).tensor("weight", {channels, channels, 3, 3});
  return {corner_taps(taps).to(scope.dtype()), scope.tensor("bias", {channels}).repeat({4}), 1, {0, 1}};
}

}  // namespace

bool Conv2d::is_filtered(const weights::Scope& scope, IntArrayRef shape, int64_t step,
                         std::array<int64_t, 2> pad) {
  return shape[2] == 3 && shape[3] == 3 && step == 1 && pad == std::array<int64_t, 2>{1, 1} &&
         is_for_cpu(scope.device()) &&
         kernels::winograd_is_faster(shape[1], shape[0], scope.dtype(), at::kCPU);
}

weights::Scope Conv2d::reading(const weights::Scope& scope, IntArrayRef shape, int64_t step,
                               std::array<int64_t, 2> pad) {
  return scope.device().is_cpu() && is_filtered(scope, shape, step, pad) ? scope.with_dtype(at::kFloat)
                                                                         : scope;
}

Conv2d::Conv2d(const weights::Scope& scope, int64_t in, int64_t out, int64_t size, int64_t step,
               int64_t pad) {
  const std::array<int64_t, 4> shape = {out, in, size, size};
  const Tensor bias_vector = scope.tensor("bias", {out});
  *this = Conv2d(scope, reading(scope, shape, step, {pad, pad}).tensor("weight", shape), bias_vector, step,
                 {pad, pad});
}

Conv2d::Conv2d(const weights::Scope& scope, const Tensor& taps, const Tensor& bias_vector, int64_t step,
               std::array<int64_t, 2> pad) {
  const bool is_transformed = is_filtered(scope, taps.sizes(), step, pad);
  if (is_transformed && taps.is_cpu()) {
    out_channels = taps.size(0);
    in_channels = taps.size(1);
    kernel = {taps.size(2), taps.size(3)};
    padding = pad;
    bias = bias_vector;
    winograd.emplace(taps, bias.defined() ? bias : at::zeros({out_channels}), scope.dtype());
  } else {
    *this = Conv2d(taps, bias_vector, step, pad);
    if (is_transformed) room = room_beyond(weight, kernels::kWinogradTaps);
  }
  role = scope.name();
}

Conv2d::Conv2d(const Tensor& taps, Tensor bias_vector, int64_t step, std::array<int64_t, 2> pad)
    : in_channels(taps.size(1)),
      out_channels(taps.size(0)),
      kernel{taps.size(2), taps.size(3)},
      stride(step),
      padding(pad),
      weight(taps.contiguous(kChannelsLast)),
      bias(std::move(bias_vector)),
      packed(can_pack(taps)) {
  const bool is_pointwise =
      kernel == std::array<int64_t, 2>{1, 1} && stride == 1 && padding == std::array<int64_t, 2>{0, 0};
  if ((is_pointwise || stride > 1) && taps.is_cpu()) {
    Linear layer(taps.permute({0, 2, 3, 1}).flatten(1), bias);
    if (layer.kernel != LinearKernel::kAten) {
      product = std::move(layer);
      weight.reset();
      packed = false;
      return;
    }
  }
  if (packed) weight = pack(weight, stride, padding);
}

Upsample2d::Upsample2d(const weights::Scope& scope, int64_t num_channels) : channels(num_channels) {
  if (kernels::winograd_is_faster(channels, channels, scope.dtype(), scope.device())) {
    const weights::Scope wide = (scope / "conv").with_dtype(at::kFloat);
    winograd.emplace(wide.tensor("weight", {channels, channels, 3, 3}), wide.tensor("bias", {channels}),
                     scope.dtype());
  } else if (scope.device().is_cpu()) {
    corners = corner_conv(scope / "conv", channels);
  } else {
    whole = Conv2d(scope / "conv", channels, channels, 3, 1, 1);
    const bool is_filtered = kernels::winograd_is_faster(channels, channels, scope.dtype(), at::kCPU);
    whole.room = room_beyond(whole.weight, is_filtered ? kernels::kUpsampleTaps : kCornerTaps);
  }
  role = (scope / "conv").name();
}

}  // namespace tessera::ops
