#include "ops/group_norm.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "ops/kernel.h"
#include "ops/operation.h"

namespace tessera::ops {
namespace {

// Positions whose moments are taken in fp32 before they are merged in double. Small enough for the first
// cache.
constexpr int64_t kBlock = 64;

// Moments of one channel: count is known from the shape.
struct ChannelSums {
  std::vector<double> sum, squares;  // sum of x; sum of (x - mean of its block)^2 + count of block * mean^2
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

// The sums of all channels of one sample. Threads take equal runs of positions; their sums are added in
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

// mean and scale [channels] of one sample.
void channel_maps(const ChannelSums& sums, int64_t positions, const GroupNorm& norm, float* mean,
                  float* scale) {
  const int64_t channels = norm.weight.numel();
  const int64_t group_channels = channels / norm.groups;
  const double count = static_cast<double>(positions * group_channels);
  const float* weight = norm.weight.const_data_ptr<float>();
  for (int64_t first = 0; first < channels; first += group_channels) {
    double sum = 0, squares = 0;
    for (int64_t c = first; c < first + group_channels; ++c) {
      sum += sums.sum[c];
      squares += sums.squares[c];
    }
    const double group_mean = sum / count;
    const double variance = std::max(0.0, squares / count - group_mean * group_mean);
    const double inverse = 1.0 / std::sqrt(variance + norm.eps);
    for (int64_t c = first; c < first + group_channels; ++c) {
      mean[c] = static_cast<float>(group_mean);
      scale[c] = static_cast<float>(inverse * weight[c]);
    }
  }
}

template <typename T>
ChannelMaps channel_maps(const GroupNorm& norm, const T* x, at::IntArrayRef sizes) {
  const int64_t channels = sizes[1], positions = sizes[2] * sizes[3];
  ChannelMaps maps{at::empty({sizes[0], channels}), at::empty({sizes[0], channels}), norm.bias};
  for (int64_t b = 0; b < sizes[0]; ++b) {
    channel_maps(sum_channels(x + b * positions * channels, positions, channels), positions, norm,
                 maps.mean.mutable_data_ptr<float>() + b * channels,
                 maps.scale.mutable_data_ptr<float>() + b * channels);
  }
  return maps;
}

template <typename T>
void apply(const GroupNorm& norm, bool with_silu, const T* x, T* y, at::IntArrayRef sizes) {
  const int64_t channels = sizes[1], positions = sizes[2] * sizes[3];
  const ChannelMaps maps = channel_maps(norm, x, sizes);
  for (int64_t b = 0; b < sizes[0]; ++b) {
    const int64_t offset = b * positions * channels;
    const ChannelMap map = maps.sample(b);
    const int64_t grain = std::max<int64_t>(1, 16384 / channels);
    at::parallel_for(0, positions, grain, [&](int64_t begin, int64_t end) {
      const T* from = x + offset + begin * channels;
      T* to = y + offset + begin * channels;
      if (with_silu) {
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
  TESSERA_CHECK(x.is_contiguous(at::MemoryFormat::ChannelsLast), "group norm needs channels-last");
  TESSERA_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16, "group norm of {}",
                c10::toString(x.scalar_type()));
}

// `y` may be `x`.
void apply(const GroupNorm& norm, bool with_silu, const at::Tensor& x, at::Tensor& y) {
  check_input(norm, x);
  if (x.numel() == 0) return;
  if (x.scalar_type() == at::kFloat) {
    apply(norm, with_silu, x.const_data_ptr<float>(), y.mutable_data_ptr<float>(), x.sizes());
  } else {
    apply(norm, with_silu, static_cast<const Bf16*>(x.const_data_ptr()),
          static_cast<Bf16*>(y.mutable_data_ptr()), x.sizes());
  }
}

// Other devices have their own kernels, some of which give another memory format than they take.
at::Tensor aten_group_norm(const GroupNorm& norm, const at::Tensor& x) {
  if (x.is_meta()) return at::empty_like(x);
  return at::group_norm(x, norm.groups, norm.weight.to(x.scalar_type()), norm.bias.to(x.scalar_type()),
                        norm.eps)
      .contiguous(at::MemoryFormat::ChannelsLast);
}

}  // namespace

GroupNorm::GroupNorm(const weights::Scope& scope, int64_t channels, int64_t num_groups, double epsilon)
    : GroupNorm(scope.with_dtype(at::kFloat).tensor("weight", {channels}),
                scope.with_dtype(at::kFloat).tensor("bias", {channels}), num_groups, epsilon) {
  role = scope.name();
}

GroupNorm::GroupNorm(const at::Tensor& channel_weight, const at::Tensor& channel_bias, int64_t num_groups,
                     double epsilon)
    : groups(num_groups),
      eps(epsilon),
      weight(channel_weight.to(at::kFloat).contiguous()),
      bias(channel_bias.to(at::kFloat).contiguous()) {
  TESSERA_CHECK(groups > 0 && weight.numel() % groups == 0, "{} channels in {} groups", weight.numel(),
                groups);
}

void GroupNorm::tell_operation(const at::Tensor& x, int64_t flops) const {
  tell("group_norm", role, x, flops * x.numel(), {&x, &weight, &bias});
}

at::Tensor GroupNorm::operator()(const at::Tensor& x) const {
  tell_operation(x, 8);
  if (!x.is_cpu()) return aten_group_norm(*this, x);
  at::Tensor y = at::empty_like(x);
  apply(*this, false, x, y);
  return y;
}

at::Tensor GroupNorm::silu(const at::Tensor& x) const {
  tell_operation(x, 9);
  if (!x.is_cpu()) return at::silu(aten_group_norm(*this, x));
  at::Tensor y = at::empty_like(x);
  apply(*this, true, x, y);
  return y;
}

void GroupNorm::silu_(at::Tensor& x) const {
  tell_operation(x, 9);
  if (!x.is_cpu()) {
    x = at::silu(aten_group_norm(*this, x));
    return;
  }
  apply(*this, true, x, x);
}

ChannelMaps GroupNorm::maps(const at::Tensor& x) const {
  tell_operation(x, 9);  // whoever asks for them applies them, with SiLU
  check_input(*this, x);
  return x.scalar_type() == at::kFloat
             ? channel_maps(*this, x.const_data_ptr<float>(), x.sizes())
             : channel_maps(*this, static_cast<const Bf16*>(x.const_data_ptr()), x.sizes());
}

void map_silu(const float* x, float* y, int64_t positions, int64_t channels, ChannelMap map) {
  run_kernel<map_positions<true, float, float>>(x, y, positions, channels, map);
}
void map_silu(const Bf16* x, float* y, int64_t positions, int64_t channels, ChannelMap map) {
  run_kernel<map_positions<true, Bf16, float>>(x, y, positions, channels, map);
}

}  // namespace tessera::ops
