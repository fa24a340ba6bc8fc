#include "kernels/gemm.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "core/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tessera::kernels {
namespace {

// The rows (times vectors of 8 columns) that are summed in registers: 12 sums, 2 vectors of b and one element
// of a take 15 of the 16 registers.
constexpr int64_t kRows = 6;
// The depth of a partial sum: 24 KiB of a panel stay in the first-level cache.
constexpr int64_t kDepth = 384;

// The rows of a block of x in a linear layer, which takes half of the second-level cache. Panels are copied
// once for each block: with 336 rows instead of 120, fp32 products run at 1.03 to 1.08 of the rate (Zen 5
// limited to AVX2, 1 MiB).
int64_t block_rows() {
  static const int64_t rows = [] {
    constexpr int64_t kLeast = 120, kMost = 480;
    int64_t fitting = 0;
#if defined(_SC_LEVEL2_CACHE_SIZE)
    fitting = ::sysconf(_SC_LEVEL2_CACHE_SIZE) / 2 / (kDepth * static_cast<int64_t>(sizeof(float)));
#endif
    return std::clamp(fitting / kRows * kRows, kLeast, kMost);
  }();
  return rows;
}

constexpr int64_t divide_up(int64_t value, int64_t by) {
  return (value + by - 1) / by;
}

// Memory that will be read next, in cache lines.
struct Ahead {
  const char* from = nullptr;
  int64_t lines = 0;
};
constexpr int64_t kLine = 64;

#if defined(__x86_64__)

// c [rows, 8 * vectors] = a [rows, depth] b, or += that if `add`; b is a panel.
template <int rows, int vectors>
TESSERA_TARGET_AVX2 void tile(int64_t depth, const float* a, int64_t lda, const float* b, float* c,
                              int64_t ldc, bool add) {
  __m256 sum[rows][vectors];
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
    for (int64_t j = 0; j < vectors; ++j) {
      sum[i][j] = add ? _mm256_loadu_ps(c + i * ldc + 8 * j) : _mm256_setzero_ps();
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    __m256 row[vectors];
#pragma GCC unroll 2
    for (int64_t j = 0; j < vectors; ++j) row[j] = _mm256_loadu_ps(b + k * kPanel + 8 * j);
#pragma GCC unroll 6
    for (int i = 0; i < rows; ++i) {
      const __m256 element = _mm256_broadcast_ss(a + i * lda + k);
#pragma GCC unroll 2
      for (int64_t j = 0; j < vectors; ++j) sum[i][j] = _mm256_fmadd_ps(element, row[j], sum[i][j]);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
    for (int64_t j = 0; j < vectors; ++j) _mm256_storeu_ps(c + i * ldc + 8 * j, sum[i][j]);
  }
}

using Tile = void (*)(int64_t, const float*, int64_t, const float*, float*, int64_t, bool);
constexpr Tile kTiles[2][kRows] = {{tile<1, 1>, tile<2, 1>, tile<3, 1>, tile<4, 1>, tile<5, 1>, tile<6, 1>},
                                   {tile<1, 2>, tile<2, 2>, tile<3, 2>, tile<4, 2>, tile<5, 2>, tile<6, 2>}};

// Computes c [m, columns] from one panel. Meanwhile, `ahead` is prefetched into the second-level cache.
void multiply_panel(int64_t m, int64_t columns, int64_t depth, const float* a, int64_t lda, const float* b,
                    float* c, int64_t ldc, bool add, Ahead ahead = {}) {
  const Tile* const tiles = kTiles[columns > 8 ? 1 : 0];
  const bool whole = columns == 8 || columns == kPanel;
  const int64_t blocks = divide_up(m, kRows), lines_per_block = divide_up(ahead.lines, blocks);
  for (int64_t row = 0; row < m; row += kRows) {
    const int64_t rows = std::min(kRows, m - row);
    float* const to = c + row * ldc;
    const int64_t first_line = row / kRows * lines_per_block;
    for (int64_t line = first_line; line < std::min(first_line + lines_per_block, ahead.lines); ++line)
      _mm_prefetch(ahead.from + line * kLine, _MM_HINT_T1);
    if (whole) {
      tiles[rows - 1](depth, a + row * lda, lda, b, to, ldc, add);
      continue;
    }
    float beside[kRows * kPanel] = {};  // storing whole vectors would overwrite what is to the right
    if (add) {
      for (int64_t i = 0; i < rows; ++i) std::copy_n(to + i * ldc, columns, beside + i * kPanel);
    }
    tiles[rows - 1](depth, a + row * lda, lda, b, beside, kPanel, add);
    for (int64_t i = 0; i < rows; ++i) std::copy_n(beside + i * kPanel, columns, to + i * ldc);
  }
}

TESSERA_TARGET_AVX2 inline __m256 widen_eight(const float* from) {
  return _mm256_loadu_ps(from);
}
TESSERA_TARGET_AVX2 inline __m128i eight_numbers(const void* from) {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}
TESSERA_TARGET_AVX2 inline __m256 widen_eight(const Bf16* from) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight_numbers(from)), 16));
}
TESSERA_TARGET_AVX2 inline __m256 widen_eight(const Fp16* from) {
  return _mm256_cvtph_ps(eight_numbers(from));
}

// Transposes 8 vectors.
TESSERA_TARGET_AVX2 inline void transpose(__m256 (&rows)[8]) {
  __m256 twos[8], fours[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    twos[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    twos[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    fours[i] = _mm256_shuffle_ps(twos[i], twos[i + 2], 0x44);
    fours[i + 1] = _mm256_shuffle_ps(twos[i], twos[i + 2], 0xee);
    fours[i + 2] = _mm256_shuffle_ps(twos[i + 1], twos[i + 3], 0x44);
    fours[i + 3] = _mm256_shuffle_ps(twos[i + 1], twos[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
  }
}

// Widens [columns, depth] of a weight whose rows are `stride` elements apart into a panel [depth, 16], with
// zeros for missing columns. A line of 64 bytes is read completely before those of eight other rows, because
// rows of a multiple of 4 KiB compete for the eight ways of the first-level cache.
template <typename T>
TESSERA_TARGET_AVX2 void gather_panel(const T* weight, int64_t stride, int64_t columns, int64_t depth,
                                      float* panel) {
  constexpr int64_t kRun = 32;
  const int64_t whole = depth / 8 * 8;
  for (int64_t run = 0; run < whole; run += kRun) {
    for (int64_t first = 0; first < kPanel; first += 8) {
      for (int64_t k = run; k < std::min(run + kRun, whole); k += 8) {
        __m256 block[8];
#pragma GCC unroll 8
        for (int64_t i = 0; i < 8; ++i) {
          const bool is_there = first + i < columns;
          block[i] = is_there ? widen_eight(weight + (first + i) * stride + k) : _mm256_setzero_ps();
        }
        transpose(block);
#pragma GCC unroll 8
        for (int64_t i = 0; i < 8; ++i) _mm256_storeu_ps(panel + (k + i) * kPanel + first, block[i]);
      }
    }
  }
  for (int64_t k = whole; k < depth; ++k) {
    for (int64_t i = 0; i < kPanel; ++i)
      panel[k * kPanel + i] = i < columns ? load(weight[i * stride + k]) : 0.0F;
  }
}

#else

void multiply_panel(int64_t, int64_t, int64_t, const float*, int64_t, const float*, float*, int64_t, bool,
                    Ahead = {}) {
  TESSERA_CHECK(false, "this matrix product needs x86");
}

template <typename T>
void gather_panel(const T*, int64_t, int64_t, int64_t, float*) {
  TESSERA_CHECK(false, "this matrix product needs x86");
}

#endif

// Activates the first `columns` of rows of 16 sums and stores them in y.
template <typename T, Activation kActivation>
TESSERA_INLINE void finish_panel(const float* sums, int64_t rows, int64_t columns, T* y, int64_t stride) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = sums + row * kPanel;
    T* to = y + row * stride;
    TESSERA_INDEPENDENT
    for (int64_t i = 0; i < columns; ++i) store(to + i, activate(from[i], kActivation));
  }
}

template <typename T>
void finish_panel(const float* sums, int64_t rows, int64_t columns, T* y, int64_t stride,
                  Activation activation) {
  switch (activation) {
    case Activation::kGeluTanh:
      return run_kernel<finish_panel<T, Activation::kGeluTanh>>(sums, rows, columns, y, stride);
    case Activation::kRelu:
      return run_kernel<finish_panel<T, Activation::kRelu>>(sums, rows, columns, y, stride);
    case Activation::kSilu:
      return run_kernel<finish_panel<T, Activation::kSilu>>(sums, rows, columns, y, stride);
    case Activation::kNone:
    case Activation::kGelu:  // applied by the caller
      return run_kernel<finish_panel<T, Activation::kNone>>(sums, rows, columns, y, stride);
  }
}

// One linear layer.
template <typename T>
struct Problem {
  const T *x, *weight;
  const float* bias;  // or null
  T* y;
  int64_t in, out;
  Activation activation;
  bool is_packed;  // the weight
};

// Buffers of one thread.
struct Scratch {
  Scratch(int64_t rows, int64_t panels)
      : x(new float[rows * kDepth]),
        panel(new float[kDepth * kPanel]),
        sums(new float[panels * rows * kPanel]) {}
  std::unique_ptr<float[]> x;      // [rows, kDepth]
  std::unique_ptr<float[]> panel;  // [kDepth, 16]
  std::unique_ptr<float[]> sums;   // [panels, rows, 16]; rows of y are too far apart for the TLB
};

void start_panel(const float* bias, int64_t columns, float* sums, int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) {
    float* const to = sums + row * kPanel;
    std::fill_n(to, kPanel, 0.0F);
    if (bias) std::copy_n(bias, columns, to);
  }
}

// The part of a packed weight that follows elements [k, k + depth) of `panel` in multiply_block(). Read
// ahead, panels of fp32 need no copy, and products take 0.92 [0.90 .. 0.94] of the time ([1056, 3840] ->
// 3840, one thread) and 0.96 [0.94 .. 0.99] ([512, 1152] -> 1152, two threads), those of bf16 0.96 [0.93 ..
// 0.98] ([2048, 1152] -> 4608, one thread; Zen 3, 3 runs).
template <typename T>
Ahead part_after(const Problem<T>& p, int64_t k, int64_t depth, int64_t panel, int64_t begin, int64_t end) {
  const bool is_last = panel + 1 == end;
  const int64_t from = is_last ? k + depth : k, next = is_last ? begin : panel + 1;
  const int64_t numbers = std::min(depth, p.in - from) * kPanel;
  return {reinterpret_cast<const char*>(p.weight + (next * p.in + from) * kPanel),
          divide_up(numbers * static_cast<int64_t>(sizeof(T)), kLine)};
}

// Computes rows [first, first + rows) of y in panels [begin, end).
template <typename T>
void multiply_block(const Problem<T>& p, int64_t first, int64_t rows, int64_t begin, int64_t end,
                    Scratch& scratch) {
  for (int64_t k = 0; k < p.in; k += kDepth) {
    const int64_t depth = std::min(kDepth, p.in - k);
    for (int64_t row = 0; row < rows; ++row) {
      run_kernel<widen<T>>(p.x + (first + row) * p.in + k, scratch.x.get() + row * kDepth, depth);
    }
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t column = panel * kPanel, columns = std::min(kPanel, p.out - column);
      float* const sums = scratch.sums.get() + (panel - begin) * rows * kPanel;
      const float* wide = scratch.panel.get();
      Ahead ahead;
      if (p.is_packed) {
        const T* const packed = p.weight + column * p.in + k * kPanel;
        if constexpr (std::is_same_v<T, float>) {
          wide = packed;
        } else {
          run_kernel<widen<T>>(packed, scratch.panel.get(), depth * kPanel);
        }
        ahead = part_after(p, k, depth, panel, begin, end);
      } else {
        gather_panel(p.weight + column * p.in + k, p.in, columns, depth, scratch.panel.get());
      }
      if (k == 0) start_panel(p.bias ? p.bias + column : nullptr, columns, sums, rows);
      multiply_panel(rows, kPanel, depth, scratch.x.get(), kDepth, wide, sums, kPanel, /*add=*/true, ahead);
      if (k + depth == p.in)
        finish_panel(sums, rows, columns, p.y + first * p.out + column, p.out, p.activation);
    }
  }
}

template <typename T>
void multiply_all(const Problem<T>& p, int64_t rows) {
  // Every thread gets the same number of blocks of rows; if there are few rows, threads share the columns.
  const int64_t threads = at::get_num_threads();
  const int64_t rounds = divide_up(rows, block_rows() * threads);
  const int64_t block = std::min(block_rows(), divide_up(divide_up(rows, rounds * threads), kRows) * kRows);
  const int64_t blocks = divide_up(rows, block), panels = divide_up(p.out, kPanel);
  const int64_t parts = std::min(panels, divide_up(threads, blocks));
  at::parallel_for(0, blocks * parts, 1, [&](int64_t task, int64_t last) {
    Scratch scratch(block, divide_up(panels, parts));
    for (; task < last; ++task) {
      const int64_t first = task / parts * block, part = task % parts;
      multiply_block(p, first, std::min(block, rows - first), panels * part / parts,
                     panels * (part + 1) / parts, scratch);
    }
  });
}

at::Tensor linear_layer(const at::Tensor& x, const at::Tensor& weight, bool is_packed, const at::Tensor& bias,
                        Activation activation) {
  const int64_t out_features = weight.size(0);
  TESSERA_CHECK(x.scalar_type() == weight.scalar_type() && x.size(-1) == weight.size(1),
                "matrix product of {} [{}] with weights in {}", c10::toString(x.scalar_type()), x.size(-1),
                c10::toString(weight.scalar_type()));
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = out_features;
  at::Tensor y = at::empty(shape, x.options());
  const at::Tensor rows = x.contiguous();
  const at::Tensor wide_bias = bias.defined() ? bias.to(at::kFloat).contiguous() : bias;
  const auto multiply = [&]<typename T>(T* to) {
    const Problem<T> problem{.x = static_cast<const T*>(rows.const_data_ptr()),
                             .weight = static_cast<const T*>(weight.const_data_ptr()),
                             .bias = bias.defined() ? wide_bias.const_data_ptr<float>() : nullptr,
                             .y = to,
                             .in = x.size(-1),
                             .out = out_features,
                             .activation = activation,
                             .is_packed = is_packed};
    if (y.numel() > 0) multiply_all(problem, y.numel() / out_features);
  };
  if (x.scalar_type() == at::kFloat) {
    multiply(y.mutable_data_ptr<float>());
  } else if (x.scalar_type() == at::kBFloat16) {
    multiply(static_cast<Bf16*>(y.mutable_data_ptr()));
  } else {
    TESSERA_CHECK(x.scalar_type() == at::kHalf, "matrix product of unsupported dtype {}",
                  c10::toString(x.scalar_type()));
    multiply(static_cast<Fp16*>(y.mutable_data_ptr()));
  }
  return activation == Activation::kGelu ? at::gelu(y) : y;
}

}  // namespace

void gemm(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t panel_stride,
          float* c, int64_t ldc, bool add) {
  for (int64_t column = 0; column < n; column += kPanel, b += panel_stride) {
    for (int64_t first = 0; first < k; first += kDepth) {
      multiply_panel(m, std::min(kPanel, n - column), std::min(kDepth, k - first), a + first, lda,
                     b + first * kPanel, c + column, ldc, add || first > 0);
    }
  }
}

at::Tensor gemm_pack(const at::Tensor& weight) {
  const int64_t out = weight.size(0), in = weight.size(1), panels = divide_up(out, kPanel);
  at::Tensor packed = at::zeros({panels, in, kPanel}, weight.options());
  for (int64_t panel = 0; panel < panels; ++panel) {
    const int64_t columns = std::min(kPanel, out - panel * kPanel);
    packed[panel].narrow(1, 0, columns).copy_(weight.narrow(0, panel * kPanel, columns).t());
  }
  return packed.flatten().narrow(0, 0, out * in).view({out, in});
}

at::Tensor gemm_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       Activation activation) {
  return linear_layer(x, weight, /*is_packed=*/true, bias, activation);
}

at::Tensor gemm_linear_as_stored(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                 Activation activation) {
  return linear_layer(x, weight.contiguous(), /*is_packed=*/false, bias, activation);
}

}  // namespace tessera::kernels
