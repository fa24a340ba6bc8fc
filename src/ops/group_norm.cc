#include "ops/group_norm.h"

#include <ATen/Functions.h>

#include "core/error.h"
#include "ops/operation.h"

namespace tessera::ops {
namespace {

void check_input(const GroupNorm& norm, const at::Tensor& x) {
  TESSERA_CHECK(x.dim() == 4 && x.size(1) == norm.weight.numel(), "group norm of {} channels got {}",
                norm.weight.numel(), fmt::join(x.sizes(), " x "));
  if (!x.is_cpu() || x.numel() == 0) return;
  // Checks one sample, because samples may be parts of larger tensors.
  TESSERA_CHECK(x.narrow(0, 0, 1).is_contiguous(at::MemoryFormat::ChannelsLast),
                "group norm needs channels-last");
  TESSERA_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16,
                "group norm of unsupported dtype {}", c10::toString(x.scalar_type()));
}

at::Tensor activated(const GroupNorm& norm, const at::Tensor& x) {
  return norm.activation == Activation::kSilu ? at::silu(x) : x;
}

// [B, C] -> [B, C, 1, 1], to broadcast over positions.
at::Tensor over_positions(const at::Tensor& x) {
  return x.unsqueeze(-1).unsqueeze(-1);
}

}  // namespace

GroupNorm::GroupNorm(const weights::Scope& scope, int64_t channels, int64_t num_groups, double epsilon,
                     Activation then)
    : GroupNorm(scope.with_dtype(at::kFloat).tensor("weight", {channels}),
                scope.with_dtype(at::kFloat).tensor("bias", {channels}), num_groups, epsilon, then) {
  role = scope.name();
}

GroupNorm::GroupNorm(const at::Tensor& channel_weight, const at::Tensor& channel_bias, int64_t num_groups,
                     double epsilon, Activation then)
    : groups(num_groups),
      eps(epsilon),
      activation(then),
      weight(channel_weight.to(at::kFloat).contiguous()),
      bias(channel_bias.to(at::kFloat).contiguous()) {
  TESSERA_CHECK(groups > 0 && weight.numel() % groups == 0,
                "group norm: {} channels are not divisible into {} groups", weight.numel(), groups);
  TESSERA_CHECK(then == Activation::kNone || then == Activation::kSilu,
                "group norm supports no activation but SiLU");
}

void GroupNorm::record_operation(const at::Tensor& x) const {
  const int64_t flops = activation == Activation::kNone ? 8 : 9;
  record("group_norm", role, x, flops * x.numel(), {x, weight, bias});
}

at::Tensor GroupNorm::operator()(const at::Tensor& x) const {
  const OperationScope scope;
  if (x.is_cpu()) return apply(maps(moments(x)), x);
  check_input(*this, x);
  record_operation(x);
  if (x.is_meta()) {
    at::Tensor y = at::empty_like(x);
    record_dataflow([&] {
      return Dataflow{"group_norm",
                      role,
                      {x, weight, bias},
                      {y},
                      {{"groups", groups}, {"epsilon", eps}, {"silu", activation == Activation::kSilu}}};
    });
    return y;
  }
  // Other devices have a single kernel for the whole norm; its result may have another memory format than its
  // input.
  return activated(*this, at::group_norm(x, groups, weight.to(x.scalar_type()), bias.to(x.scalar_type()), eps)
                              .contiguous(at::MemoryFormat::ChannelsLast));
}

at::Tensor GroupNorm::moments(const at::Tensor& x, const at::Tensor& offset) const {
  const OperationScope scope;
  check_input(*this, x);
  record_operation(x);
  if (x.is_meta()) {
    at::Tensor of_groups = at::empty({x.size(0), groups, 2}, x.options().dtype(at::kDouble));
    record_dataflow(
        [&] { return Dataflow{"group_moments", role, {x, offset}, {of_groups}, {{"groups", groups}}}; });
    return of_groups;
  }
  if (!x.is_cpu()) {
    const at::Tensor wide = offset.defined() ? x.to(at::kFloat) + over_positions(offset) : x.to(at::kFloat);
    const auto [variance, mean] =
        at::var_mean(wide.contiguous().view({x.size(0), groups, -1}), {2}, /*correction=*/0);
    return at::stack({mean, variance}, -1).to(at::kDouble);
  }
  const at::Tensor added = offset.defined() ? offset.to(at::kFloat).contiguous() : offset;
  return kernels::group_moments(x, groups, added);
}

ChannelMaps GroupNorm::maps(const at::Tensor& moments, const at::Tensor& offset) const {
  const OperationScope scope;
  const auto of_channels = [&](const at::Tensor& of_groups) {
    return of_groups.repeat_interleave(weight.numel() / groups, 1);
  };
  const at::Tensor inverse = (moments.select(2, 1).to(at::kDouble) + eps).sqrt().reciprocal();
  at::Tensor mean = of_channels(moments.select(2, 0));
  if (offset.defined()) mean = mean - offset;
  ChannelMaps maps{mean.to(at::kFloat), (of_channels(inverse) * weight).to(at::kFloat), bias};
  record_dataflow([&] {
    return Dataflow{
        "channel_maps", role, {moments, offset, weight}, {maps.mean, maps.scale}, {{"epsilon", eps}}};
  });
  return maps;
}

at::Tensor GroupNorm::apply(const ChannelMaps& maps, const at::Tensor& x) const {
  at::Tensor y = at::empty(x.sizes(), x.options(), at::MemoryFormat::ChannelsLast);
  apply_into(y, maps, x);
  return y;
}

at::Tensor GroupNorm::apply_over(const ChannelMaps& maps, at::Tensor x) const {
  if (x.use_count() > 1) return apply(maps, x);
  apply_into(x, maps, x);
  return x;
}

void GroupNorm::apply_into(const at::Tensor& y, const ChannelMaps& maps, const at::Tensor& x) const {
  const OperationScope scope;
  check_input(*this, x);
  check_input(*this, y);
  record_dataflow([&] {
    return Dataflow{"apply_maps",
                    role,
                    {x, maps.mean, maps.scale, maps.bias},
                    {y},
                    {{"silu", activation == Activation::kSilu}}};
  });
  if (x.is_meta() || x.numel() == 0) return;
  if (!x.is_cpu()) {
    const at::Tensor centred = x.to(at::kFloat) - over_positions(maps.mean);
    y.copy_(activated(
        *this, at::addcmul(over_positions(maps.bias.unsqueeze(0)), centred, over_positions(maps.scale))));
  } else {
    kernels::apply_maps(maps, activation, x, y);
  }
}

}  // namespace tessera::ops
