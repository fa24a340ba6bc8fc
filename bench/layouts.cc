// Times the judging of layouts: all degrees from 1 to 4 for a video, most of which break rules.
#include <benchmark/benchmark.h>

#include <vector>

#include "core/error.h"
#include "parallel/layout.h"
#include "parallel/layout_rules.h"

namespace tessera {
namespace {

constexpr parallel::Workload kVideo{.heads = 16,
                                    .blocks = 28,
                                    .token_rows = 45,
                                    .token_frames = 15,
                                    .axial_attention = true,
                                    .steps = 30,
                                    .pictures = 2};

std::vector<parallel::ParallelOptions> all_wishes() {
  std::vector<parallel::ParallelOptions> wishes = {{}};
  for (const parallel::Degree& degree : parallel::kDegrees) {
    std::vector<parallel::ParallelOptions> more;
    for (const parallel::ParallelOptions& wish : wishes) {
      for (int64_t value = 1; value <= 4; ++value) {
        more.push_back(wish);
        more.back().*degree.value = value;
      }
    }
    wishes = std::move(more);
  }
  return wishes;
}

void judged_layouts(benchmark::State& state) {
  const std::vector<parallel::ParallelOptions> wishes = all_wishes();
  for (auto _ : state) {
    for (const parallel::ParallelOptions& wish : wishes)
      benchmark::DoNotOptimize(parallel::violations(wish, kVideo));
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(wishes.size()));
}

// With the words and the nearest valid settings for those that break rules.
void resolved_layouts(benchmark::State& state) {
  const std::vector<parallel::ParallelOptions> wishes = all_wishes();
  size_t next = 0;
  for (auto _ : state) {
    next = (next + 997) % wishes.size();
    try {
      benchmark::DoNotOptimize(parallel::resolve_layout(wishes[next], kVideo, std::nullopt));
    } catch (const Error& error) {
      benchmark::DoNotOptimize(error.what());
    }
  }
  state.SetItemsProcessed(state.iterations());
}

BENCHMARK(judged_layouts)->Unit(benchmark::kMillisecond);
BENCHMARK(resolved_layouts)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tessera
