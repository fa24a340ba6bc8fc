#include "kernels/tile_gemm.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "core/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#define TESSERA_TARGET_AMX                                                                   \
  __attribute__((                                                                            \
      target("avx,avx2,bmi,bmi2,f16c,fma,lzcnt,movbe,popcnt,sse4.2,xsave,cx16,sahf,avx512f," \
             "avx512bw,avx512cd,avx512dq,avx512vl,amx-tile,amx-bf16")))
#endif

namespace tessera::kernels {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileElements = 512;        // in bf16; a tile of sums has half as many
constexpr int64_t kSide = 32;                 // rows and columns of four tiles of sums, and inputs per step
constexpr int64_t kStep = 2 * kTileElements;  // elements of x, or of a weight, that four products read
constexpr int64_t kSums = kSide * kSide;      // elements of four tiles of sums
// The number of consecutive steps: 16 KiB of a weight stay in the first-level cache while the rows of x pass
// by. GMAC/s with x [2048, 1280], for 1280 and 10240 outputs, on one core with AMX: 4 steps 870, 8 steps 899
// and 877, 40 steps 700; oneDNN 500.
constexpr int64_t kChunk = 8;
// The bytes of a block of x that stay in the second-level cache (2 MiB) while all columns of a weight pass
// by.
constexpr int64_t kBlockBytes = 768 << 10;
// The number of panels of columns that are summed before they are written: rows of y are too far apart to
// write fewer columns at once.
constexpr int64_t kPanels = 8;
// The number of inputs multiplied in one run. If there are more, sums are kept in memory between runs.
constexpr int64_t kDepth = 2048;

constexpr int64_t divide_up(int64_t value, int64_t by) {
  return (value + by - 1) / by;
}

// Allocates uninitialised memory at the start of a cache line.
template <typename T>
struct AlignedFree {
  void operator()(T* pointer) const { ::operator delete[](pointer, std::align_val_t(64)); }
};
template <typename T>
using Aligned = std::unique_ptr<T[], AlignedFree<T>>;
template <typename T>
Aligned<T> aligned(int64_t count) {
  return Aligned<T>(new (std::align_val_t(64)) T[static_cast<size_t>(count)]);
}

// One linear layer.
struct Problem {
  const Bf16 *x, *weight;
  const float* bias;  // for all panels
  Bf16* y;
  int64_t in, out;
  Activation activation;
};

// Packs rows [first, first + rows) of x, inputs [begin, begin + depth), into tiles padded with zeros: one
// chunk of steps after another, each [rows / 32, steps of the chunk, 2, 16, 32].
void pack_rows(const Problem& p, int64_t first, int64_t rows, int64_t begin, int64_t depth, Bf16* packed) {
  const int64_t steps = divide_up(depth, kSide), groups = divide_up(rows, kSide);
  for (int64_t chunk = 0; chunk < steps; chunk += kChunk) {
    const int64_t length = std::min(kChunk, steps - chunk);
    for (int64_t row = 0; row < groups * kSide; ++row) {
      Bf16* to = packed + (chunk * groups + row / kSide * length) * kStep + row % kSide * kSide;
      const int64_t in_row = row < rows ? depth - chunk * kSide : 0;  // zero below the last row
      const Bf16* const from = p.x + (first + row) * p.in + begin + chunk * kSide;
      for (int64_t step = 0; step < length; ++step, to += kStep) {
        const int64_t count = std::clamp<int64_t>(in_row - step * kSide, 0, kSide);
        if (count == kSide) {
          std::memcpy(to, from + step * kSide, kSide * sizeof(Bf16));
        } else {
          std::fill_n(to, kSide, Bf16{0});
          if (count > 0) std::copy_n(from + step * kSide, count, to);
        }
      }
    }
  }
}

// Adds the bias to sums [panels, 2, 2, 16, 16], activates them and stores `rows` and `columns` of them in y.
// Panels are `stride` apart and rows of y `row_stride`. `bias` covers all columns of the panels.
template <Activation kActivation>
TESSERA_INLINE void finish(const float* sums, int64_t stride, const float* bias, int64_t rows,
                           int64_t columns, Bf16* y, int64_t row_stride) {
  alignas(64) float wide[kPanels * kSide];
  for (int64_t row = 0; row < rows; ++row, y += row_stride) {
    const float* const of_row = sums + row / kTileRows * (kSums / 2) + row % kTileRows * kTileRows;
    for (int64_t begin = 0; begin < columns; begin += kTileRows) {
      const float* const from = of_row + begin / kSide * stride + begin % kSide / kTileRows * (kSums / 4);
      TESSERA_INDEPENDENT
      for (int64_t i = 0; i < kTileRows; ++i)
        wide[begin + i] = activate(from[i] + bias[begin + i], kActivation);
    }
    TESSERA_INDEPENDENT
    for (int64_t i = 0; i < columns; ++i) store(y + i, wide[i]);
  }
}

void finish(const float* sums, int64_t stride, const float* bias, int64_t rows, int64_t columns, Bf16* y,
            int64_t row_stride, Activation activation) {
  switch (activation) {
    case Activation::kGeluTanh:
      return run_kernel<finish<Activation::kGeluTanh>>(sums, stride, bias, rows, columns, y, row_stride);
    case Activation::kRelu:
      return run_kernel<finish<Activation::kRelu>>(sums, stride, bias, rows, columns, y, row_stride);
    case Activation::kSilu:
      return run_kernel<finish<Activation::kSilu>>(sums, stride, bias, rows, columns, y, row_stride);
    case Activation::kNone:
    case Activation::kGelu:  // applied by the caller
      return run_kernel<finish<Activation::kNone>>(sums, stride, bias, rows, columns, y, row_stride);
  }
}

#if defined(__x86_64__)

// The layout of tiles in the processor's format.
struct alignas(64) TileConfig {
  uint8_t palette = 0, start_row = 0;
  std::array<uint8_t, 14> reserved = {};
  std::array<uint16_t, 16> row_bytes = {};
  std::array<uint8_t, 16> rows = {};
};
static_assert(sizeof(TileConfig) == 64);

// Configures eight whole tiles on this thread during its lifetime, then restores the previous configuration,
// which other libraries that use tiles may rely on. The contents of the tiles are lost.
class Tiles {
 public:
  Tiles() {
    asm volatile("sttilecfg %0" : "=m"(before_));
    TileConfig whole;
    whole.palette = 1;
    std::fill_n(whole.row_bytes.begin(), 8, uint16_t{64});
    std::fill_n(whole.rows.begin(), 8, uint8_t{kTileRows});
    load(whole);
  }
  ~Tiles() { load(before_); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

 private:
  // In assembly, because GCC 12's _tile_loadconfig lets the compiler drop writes to all but the first bytes.
  TESSERA_TARGET_AMX static void load(const TileConfig& config) {
    asm volatile("ldtilecfg %0" : : "m"(config));
  }

  TileConfig before_;
};

// sums [2, 2, 16, 16] = a b, or += that if `add`, over `steps` steps of 32 inputs. Without `kBothHalves`, `a`
// has at most 16 rows and the lower half is left out. In each step `lines` cache lines of the next operand,
// at `next`, are prefetched.
template <bool kBothHalves>
TESSERA_TARGET_AMX void multiply(int64_t steps, const Bf16* a, const Bf16* b, float* sums, bool add,
                                 const char* next, int64_t lines) {
  constexpr int kLine = 64;
  if (add) {
    _tile_loadd(0, sums, kLine);
    _tile_loadd(1, sums + kSums / 4, kLine);
    if (kBothHalves) {
      _tile_loadd(2, sums + kSums / 2, kLine);
      _tile_loadd(3, sums + 3 * kSums / 4, kLine);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if (kBothHalves) {
      _tile_zero(2);
      _tile_zero(3);
    }
  }
  for (int64_t step = 0; step < steps; ++step, a += kStep, b += kStep) {
    for (int64_t line = 0; line < lines; ++line) _mm_prefetch(next + line * kLine, _MM_HINT_T1);
    next += kStep * sizeof(Bf16);
    _tile_loadd(4, a, kLine);
    if (kBothHalves) _tile_loadd(5, a + kTileElements, kLine);
    _tile_loadd(6, b, kLine);
    _tile_dpbf16ps(0, 4, 6);
    if (kBothHalves) _tile_dpbf16ps(2, 5, 6);
    _tile_loadd(7, b + kTileElements, kLine);
    _tile_dpbf16ps(1, 4, 7);
    if (kBothHalves) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, kLine);
  _tile_stored(1, sums + kSums / 4, kLine);
  if (kBothHalves) {
    _tile_stored(2, sums + kSums / 2, kLine);
    _tile_stored(3, sums + 3 * kSums / 4, kLine);
  }
}

bool are_tiles_lent() {
  // Linux reserves space for the tiles in the saved state of a process's threads only on request.
  constexpr int kArchReqXcompPerm = 0x1023, kXfeatureXtiledata = 18;
  return ::syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
}

#else

struct Tiles {};
template <bool kBothHalves>
void multiply(int64_t, const Bf16*, const Bf16*, float*, bool, const char*, int64_t) {
  TESSERA_CHECK(false, "matrix tiles need x86");
}
bool are_tiles_lent() {
  return false;
}

#endif

// How a thread partitions a layer.
struct Plan {
  explicit Plan(int64_t in)
      : runs(divide_up(in, kDepth)),
        depth(divide_up(divide_up(in, runs), kSide) * kSide),
        block(std::max(kSide, kBlockBytes / 2 / depth / kSide * kSide)) {}
  int64_t runs, depth;
  int64_t block;  // maximum number of rows
};

// Buffers of one thread.
struct Scratch {
  Scratch(const Plan& plan, int64_t rows, int64_t panels)
      : x(aligned<Bf16>(divide_up(rows, kSide) * kSide * plan.depth)),
        sums(aligned<float>(divide_up(rows, kSide) * kSums * (plan.runs == 1 ? kPanels : panels))) {}
  Aligned<Bf16> x;
  Aligned<float> sums;  // for kPanels panels of columns; for all panels if there are several runs
};

// The columns of one panel in one run.
struct Panel {
  const Bf16 *weight, *next;  // of this panel and of the next
  int64_t steps;
  bool add;     // whether to add to the sums of an earlier run
  float* sums;  // [groups of 32 rows, 2, 2, 16, 16]
};

void multiply_panel(const Panel& panel, const Bf16* x, int64_t rows) {
  const int64_t groups = divide_up(rows, kSide);
  const int64_t lines = divide_up(kStep * static_cast<int64_t>(sizeof(Bf16)) / 64, groups);
  for (int64_t chunk = 0; chunk < panel.steps; chunk += kChunk) {
    const int64_t length = std::min(kChunk, panel.steps - chunk);
    const char* const next = reinterpret_cast<const char*>(panel.next + chunk * kStep);
    for (int64_t group = 0; group < groups; ++group) {
      const bool both = rows - group * kSide > kTileRows;
      (both ? multiply<true> : multiply<false>)(length, x + (chunk * groups + group * length) * kStep,
                                                panel.weight + chunk * kStep, panel.sums + group * kSums,
                                                panel.add || chunk > 0,
                                                next + group * lines * 64 % (kStep * sizeof(Bf16)), lines);
    }
  }
}

// Computes rows [first, first + rows) of y in panels [begin, end) of 32 columns.
void multiply_block(const Problem& p, const Plan& plan, int64_t first, int64_t rows, int64_t begin,
                    int64_t end, Scratch& scratch) {
  const int64_t all_steps = divide_up(p.in, kSide), groups = divide_up(rows, kSide);
  for (int64_t run = 0; run < plan.runs; ++run) {
    const int64_t input = run * plan.depth, depth = std::min(plan.depth, p.in - input);
    pack_rows(p, first, rows, input, depth, scratch.x.get());
    for (int64_t batch = begin; batch < end; batch += kPanels) {
      const int64_t batch_end = std::min(end, batch + kPanels);
      float* const sums = scratch.sums.get() + (plan.runs == 1 ? 0 : (batch - begin) * groups * kSums);
      for (int64_t panel = batch; panel < batch_end; ++panel) {
        const Bf16* const weight = p.weight + (panel * all_steps + input / kSide) * kStep;
        multiply_panel({weight, weight + (panel + 1 < end ? all_steps * kStep : 0), divide_up(depth, kSide),
                        run > 0, sums + (panel - batch) * groups * kSums},
                       scratch.x.get(), rows);
      }
      if (run + 1 < plan.runs) continue;
      const int64_t column = batch * kSide, columns = std::min(batch_end * kSide, p.out) - column;
      for (int64_t group = 0; group < groups; ++group) {
        finish(sums + group * kSums, groups * kSums, p.bias + column, std::min(kSide, rows - group * kSide),
               columns, p.y + (first + group * kSide) * p.out + column, p.out, p.activation);
      }
    }
  }
}

void multiply_all(const Problem& p, int64_t rows) {
  // Every thread gets the same number of blocks of rows; if there are few rows, threads share the columns.
  const Plan plan(p.in);
  const int64_t threads = at::get_num_threads();
  const int64_t rounds = divide_up(rows, plan.block * threads);
  const int64_t block = std::min(plan.block, divide_up(divide_up(rows, rounds * threads), kSide) * kSide);
  const int64_t blocks = divide_up(rows, block), panels = divide_up(p.out, kSide);
  const int64_t parts = std::min(panels, divide_up(threads, blocks));
  at::parallel_for(0, blocks * parts, 1, [&](int64_t task, int64_t last) {
    Scratch scratch(plan, std::min(block, rows), divide_up(panels, parts));
    const Tiles tiles;
    for (; task < last; ++task) {
      const int64_t first = task / parts * block, part = task % parts;
      multiply_block(p, plan, first, std::min(block, rows - first), panels * part / parts,
                     panels * (part + 1) / parts, scratch);
    }
  });
}

}  // namespace

bool tile_gemm_runs() {
  static const bool runs = cpu_isa() >= Isa::kAmx && are_tiles_lent();
  return runs;
}

at::Tensor tile_gemm_pack(const at::Tensor& weight) {
  TESSERA_CHECK(weight.scalar_type() == at::kBFloat16, "matrix tiles need bf16 weights, got {}",
                c10::toString(weight.scalar_type()));
  const int64_t out = weight.size(0), in = weight.size(1);
  const int64_t panels = divide_up(out, kSide), steps = divide_up(in, kSide);
  at::Tensor packed = at::empty({panels * steps * kStep}, weight.options());
  const at::Tensor rows = weight.contiguous();
  const Bf16* const from = static_cast<const Bf16*>(rows.const_data_ptr());
  Bf16* const to = static_cast<Bf16*>(packed.mutable_data_ptr());
  at::parallel_for(0, panels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      Bf16* const tiles = to + panel * steps * kStep;
      if (in % kSide != 0 || out % kSide != 0) std::fill_n(tiles, steps * kStep, Bf16{0});
      for (int64_t column = panel * kSide; column < std::min(out, (panel + 1) * kSide); ++column) {
        const Bf16* const row = from + column * in;
        Bf16* const place = tiles + column % kSide / kTileRows * kTileElements + column % kTileRows * 2;
        for (int64_t k = 0; k < in; ++k)
          place[k / kSide * kStep + k % kSide / 2 * 2 * kTileRows + k % 2] = row[k];
      }
    }
  });
  return packed.narrow(0, 0, out * in).view({out, in});
}

at::Tensor tile_gemm_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            Activation activation) {
  const int64_t out_features = weight.size(0);
  TESSERA_CHECK(x.scalar_type() == at::kBFloat16 && x.size(-1) == weight.size(1),
                "matrix product by tiles got {} [{}]", c10::toString(x.scalar_type()), x.size(-1));
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = out_features;
  at::Tensor y = at::empty(shape, x.options());
  const at::Tensor rows = x.contiguous();
  const at::Tensor wide_bias = at::zeros({divide_up(out_features, kSide) * kSide}, at::kFloat);
  if (bias.defined()) wide_bias.narrow(0, 0, out_features).copy_(bias);
  const Problem problem{.x = static_cast<const Bf16*>(rows.const_data_ptr()),
                        .weight = static_cast<const Bf16*>(weight.const_data_ptr()),
                        .bias = wide_bias.const_data_ptr<float>(),
                        .y = static_cast<Bf16*>(y.mutable_data_ptr()),
                        .in = x.size(-1),
                        .out = out_features,
                        .activation = activation};
  if (y.numel() > 0) multiply_all(problem, y.numel() / out_features);
  return activation == Activation::kGelu ? at::gelu(y) : y;
}

}  // namespace tessera::kernels
