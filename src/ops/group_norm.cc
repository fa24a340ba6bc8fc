#include "ops/group_norm.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "ops/kernel.h"
#include "ops/operation.h"

namespace tessera::ops {
namespace {

// The number of positions whose moments are taken in fp32 before they are merged in double. They fit the
// first-level cache.
constexpr int64_t kBlock = 64;

// Sums of each channel over all positions.
struct ChannelSums {
  std::vector<double> sum, squares;  // of x; of (x - block mean)^2 + block mean^2
};

template <typename T>
TESSERA_INLINE void add_block(const T* x, int64_t positions, int64_t channels, float* sum, float* squares) {
  for (int64_t c = 0; c < channels; ++c) sum[c] = squares[c] = 0.0F;
  for (int64_t p = 1; p < positions; ++p) {
    const T* row = x + p * channels;
    TESSERA_INDEPENDENT
    for (int64_t c = 0; c < channels; ++c) {
      const float shifted = load(row[c]) - load(x[c]);
      sum[c] += shifted;
      squares[c] += shifted * shifted;
    }
  }
}

template <typename T>
TESSERA_INLINE void merge_block(const T* x, int64_t positions, int64_t channels, const float* sum,
                                const float* squares, double* total, double* total_squares) {
  const double count = static_cast<double>(positions);
  for (int64_t c = 0; c < channels; ++c) {
    const double shift_sum = sum[c];
    const double mean = load(x[c]) + shift_sum / count;
    total[c] += mean * count;
    total_squares[c] += squares[c] - shift_sum * shift_sum / count + mean * mean * count;
  }
}

template <typename T>
TESSERA_INLINE void add_positions(const T* x, int64_t positions, int64_t channels, float* scratch,
                                  double* total, double* total_squares) {
  for (int64_t begin = 0; begin < positions; begin += kBlock) {
    const int64_t count = std::min(kBlock, positions - begin);
    const T* block = x + begin * channels;
    add_block(block, count, channels, scratch, scratch + channels);
    merge_block(block, count, channels, scratch, scratch + channels, total, total_squares);
  }
}

template <bool kSilu, typename T, typename Y>
TESSERA_INLINE void map_positions(const T* x, Y* y, int64_t positions, int64_t channels, ChannelMap map) {
  for (int64_t p = 0; p < positions; ++p) {
    const T* from = x + p * channels;
    Y* to = y + p * channels;
    TESSERA_INDEPENDENT
    for (int64_t c = 0; c < channels; ++c) {
      const float value = (load(from[c]) - map.mean[c]) * map.scale[c] + map.bias[c];
      store(to + c, kSilu ? silu(value) : value);
    }
  }
}

// The sums of all channels of one sample. Threads take equal runs of positions, and their sums are added in
// order.
template <typename T>
ChannelSums sum_channels(const T* x, int64_t positions, int64_t channels) {
  const int64_t parts =
      std::min<int64_t>(at::get_num_threads(), std::max<int64_t>(1, positions * channels / 16384));
  const int64_t blocks = (positions + kBlock - 1) / kBlock;
  std::vector<ChannelSums> sums(parts, {std::vector<double>(channels), std::vector<double>(channels)});
  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(2 * channels);
    for (int64_t part = begin; part < end; ++part) {
      const int64_t first = blocks * part / parts * kBlock;
      const int64_t last = std::min(positions, blocks * (part + 1) / parts * kBlock);
      run_kernel<add_positions<T>>(x + first * channels, last - first, channels, scratch.data(),
                                   sums[part].sum.data(), sums[part].squares.data());
    }
  });
  for (int64_t part = 1; part < parts; ++part) {
    for (int64_t c = 0; c < channels; ++c) {
      sums[0].sum[c] += sums[part].sum[c];
      sums[0].squares[c] += sums[part].squares[c];
    }
  }
  return std::move(sums[0]);
}

// Mean and biased variance of each group of a sample: [groups, 2].
void group_moments(const ChannelSums& sums, int64_t positions, int64_t groups, double* moments) {
  const int64_t group_channels = static_cast<int64_t>(sums.sum.size()) / groups;
  const double count = static_cast<double>(positions * group_channels);
  for (int64_t group = 0; group < groups; ++group) {
    double sum = 0, squares = 0;
    for (int64_t c = group * group_channels; c < (group + 1) * group_channels; ++c) {
      sum += sums.sum[c];
      squares += sums.squares[c];
    }
    const double mean = sum / count;
    moments[2 * group] = mean;
    // With an infinite variance all elements would become the bias, which hides the overflow.
    moments[2 * group + 1] = std::isfinite(squares) ? std::max(0.0, squares / count - mean * mean) : NAN;
  }
}

// Sample b of x, whose channels are contiguous at each position.
template <typename T>
const T* sample_of(const at::Tensor& x, int64_t b) {
  return static_cast<const T*>(x.const_data_ptr()) + b * x.stride(0);
}

// Turns the `sums` of x into those of x + offset.
void add_offset(ChannelSums& sums, int64_t positions, const float* offset) {
  const double count = static_cast<double>(positions);
  for (size_t c = 0; c < sums.sum.size(); ++c) {
    const double added = offset[c];
    sums.squares[c] += added * (2 * sums.sum[c] + added * count);
    sums.sum[c] += added * count;
  }
}

template <typename T>
at::Tensor moments_of(const GroupNorm& norm, const at::Tensor& x, const at::Tensor& offset) {
  at::Tensor moments = at::empty({x.size(0), norm.groups, 2}, at::kDouble);
  const int64_t positions = x.size(2) * x.size(3);
  for (int64_t b = 0; b < x.size(0); ++b) {
    ChannelSums sums = sum_channels(sample_of<T>(x, b), positions, x.size(1));
    if (offset.defined()) add_offset(sums, positions, offset[b].const_data_ptr<float>());
    group_moments(sums, positions, norm.groups, moments.mutable_data_ptr<double>() + b * norm.groups * 2);
  }
  return moments;
}

template <typename T>
void apply_maps(const GroupNorm& norm, const ChannelMaps& maps, const at::Tensor& x, const at::Tensor& y) {
  const int64_t channels = x.size(1), positions = x.size(2) * x.size(3);
  for (int64_t b = 0; b < x.size(0); ++b) {
    const ChannelMap map = maps.sample(b);
    const int64_t grain = std::max<int64_t>(1, 16384 / channels);
    at::parallel_for(0, positions, grain, [&](int64_t begin, int64_t end) {
      const T* from = sample_of<T>(x, b) + begin * channels;
      T* to = static_cast<T*>(y.mutable_data_ptr()) + b * y.stride(0) + begin * channels;
      if (norm.activation == Activation::kSilu) {
        run_kernel<map_positions<true, T, T>>(from, to, end - begin, channels, map);
      } else {
        run_kernel<map_positions<false, T, T>>(from, to, end - begin, channels, map);
      }
    });
  }
}

void check_input(const GroupNorm& norm, const at::Tensor& x) {
  TESSERA_CHECK(x.dim() == 4 && x.size(1) == norm.weight.numel(), "group norm of {} channels got {}",
                norm.weight.numel(), fmt::join(x.sizes(), " x "));
  if (!x.is_cpu() || x.numel() == 0) return;
  // Checks each sample, as samples may be parts of larger tensors.
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
  if (x.is_meta()) return at::empty_like(x);
  // Other devices have one kernel for the whole norm, whose memory format may differ from that of its input.
  return activated(*this, at::group_norm(x, groups, weight.to(x.scalar_type()), bias.to(x.scalar_type()), eps)
                              .contiguous(at::MemoryFormat::ChannelsLast));
}

at::Tensor GroupNorm::moments(const at::Tensor& x, const at::Tensor& offset) const {
  const OperationScope scope;
  check_input(*this, x);
  record_operation(x);
  if (x.is_meta()) return at::empty({x.size(0), groups, 2}, x.options().dtype(at::kDouble));
  if (!x.is_cpu()) {
    const at::Tensor wide = offset.defined() ? x.to(at::kFloat) + over_positions(offset) : x.to(at::kFloat);
    const auto [variance, mean] =
        at::var_mean(wide.contiguous().view({x.size(0), groups, -1}), {2}, /*correction=*/0);
    return at::stack({mean, variance}, -1).to(at::kDouble);
  }
  const at::Tensor added = offset.defined() ? offset.to(at::kFloat).contiguous() : offset;
  return x.scalar_type() == at::kFloat ? moments_of<float>(*this, x, added)
                                       : moments_of<Bf16>(*this, x, added);
}

ChannelMaps GroupNorm::maps(const at::Tensor& moments, const at::Tensor& offset) const {
  const OperationScope scope;
  const auto of_channels = [&](const at::Tensor& of_groups) {
    return of_groups.repeat_interleave(weight.numel() / groups, 1);
  };
  const at::Tensor inverse = (moments.select(2, 1).to(at::kDouble) + eps).sqrt().reciprocal();
  at::Tensor mean = of_channels(moments.select(2, 0));
  if (offset.defined()) mean = mean - offset;
  return {mean.to(at::kFloat), (of_channels(inverse) * weight).to(at::kFloat), bias};
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
  if (x.is_meta() || x.numel() == 0) return;
  if (!x.is_cpu()) {
    const at::Tensor centred = x.to(at::kFloat) - over_positions(maps.mean);
    y.copy_(activated(
        *this, at::addcmul(over_positions(maps.bias.unsqueeze(0)), centred, over_positions(maps.scale))));
  } else if (x.scalar_type() == at::kFloat) {
    apply_maps<float>(*this, maps, x, y);
  } else {
    apply_maps<Bf16>(*this, maps, x, y);
  }
}

void map_silu(const float* x, float* y, int64_t positions, int64_t channels, ChannelMap map) {
  run_kernel<map_positions<true, float, float>>(x, y, positions, channels, map);
}
void map_silu(const Bf16* x, float* y, int64_t positions, int64_t channels, ChannelMap map) {
  run_kernel<map_positions<true, Bf16, float>>(x, y, positions, channels, map);
}

}  // namespace tessera::ops
