#include "kernels/group_norm.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace tessera::kernels {
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
void moments_of_groups(const ChannelSums& sums, int64_t positions, int64_t groups, double* moments) {
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
    // With an infinite variance, all elements would become the bias, which would hide the overflow.
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
at::Tensor moments_of(const at::Tensor& x, int64_t groups, const at::Tensor& offset) {
  at::Tensor moments = at::empty({x.size(0), groups, 2}, at::kDouble);
  const int64_t positions = x.size(2) * x.size(3);
  for (int64_t b = 0; b < x.size(0); ++b) {
    ChannelSums sums = sum_channels(sample_of<T>(x, b), positions, x.size(1));
    if (offset.defined()) add_offset(sums, positions, offset[b].const_data_ptr<float>());
    moments_of_groups(sums, positions, groups, moments.mutable_data_ptr<double>() + b * groups * 2);
  }
  return moments;
}

template <typename T>
void apply_all(const ChannelMaps& maps, Activation activation, const at::Tensor& x, const at::Tensor& y) {
  const int64_t channels = x.size(1), positions = x.size(2) * x.size(3);
  for (int64_t b = 0; b < x.size(0); ++b) {
    const ChannelMap map = maps.sample(b);
    const int64_t grain = std::max<int64_t>(1, 16384 / channels);
    at::parallel_for(0, positions, grain, [&](int64_t begin, int64_t end) {
      const T* from = sample_of<T>(x, b) + begin * channels;
      T* to = static_cast<T*>(y.mutable_data_ptr()) + b * y.stride(0) + begin * channels;
      if (activation == Activation::kSilu) {
        run_kernel<map_positions<true, T, T>>(from, to, end - begin, channels, map);
      } else {
        run_kernel<map_positions<false, T, T>>(from, to, end - begin, channels, map);
      }
    });
  }
}

}  // namespace

at::Tensor group_moments(const at::Tensor& x, int64_t groups, const at::Tensor& offset) {
  return x.scalar_type() == at::kFloat ? moments_of<float>(x, groups, offset)
                                       : moments_of<Bf16>(x, groups, offset);
}

void apply_maps(const ChannelMaps& maps, Activation activation, const at::Tensor& x, const at::Tensor& y) {
  if (x.scalar_type() == at::kFloat) {
    apply_all<float>(maps, activation, x, y);
  } else {
    apply_all<Bf16>(maps, activation, x, y);
  }
}

void map_silu(const float* x, float* y, int64_t positions, int64_t channels, ChannelMap map) {
  run_kernel<map_positions<true, float, float>>(x, y, positions, channels, map);
}
void map_silu(const Bf16* x, float* y, int64_t positions, int64_t channels, ChannelMap map) {
  run_kernel<map_positions<true, Bf16, float>>(x, y, positions, channels, map);
}

}  // namespace tessera::kernels
