#include "parallel/workload.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tessera::parallel {
namespace {

// Numbers beyond those of any video are refused later; here they must not overflow.
int64_t requested_patches(const ParallelOptions& options) {
  constexpr int64_t kMost = int64_t{1} << 32;
  return std::clamp<int64_t>(options.num_pipeline_patch.value_or(1), 1, kMost);
}

// Returns how many units can be dealt out along an axis: units of rows, or frames.
int64_t units_of(GridAxis axis, const Workload& workload) {
  return axis == GridAxis::kRows ? (workload.token_rows + workload.row_unit - 1) / workload.row_unit
                                 : workload.token_frames;
}

// Patches consist of rows, unless only frames are enough for all ranks and patches, or frames are requested.
GridAxis patch_axis_of(const ParallelOptions& options, const Workload& workload) {
  if (options.pipeline_patch_axis) return *options.pipeline_patch_axis;
  const int64_t needed = options.sequence_degree() * requested_patches(options);
  return workload.token_rows >= std::min(needed, workload.token_frames) ? GridAxis::kRows : GridAxis::kFrames;
}

// Ranks divide rows, unless only frames are enough for them.
GridAxis rank_axis_of(const ParallelOptions& options, const Workload& workload, GridAxis patch_axis) {
  const auto per_patch = [&](GridAxis axis) {
    const int64_t patches = axis == patch_axis ? requested_patches(options) : 1;
    return std::max<int64_t>(1, units_of(axis, workload) / patches);
  };
  const int64_t rows = per_patch(GridAxis::kRows);
  return rows >= std::min(options.sequence_degree(), per_patch(GridAxis::kFrames)) ? GridAxis::kRows
                                                                                   : GridAxis::kFrames;
}

// DSP sends two activations where dividing heads sends four, so it is the default if every rank then has
// work.
bool uses_dsp(const ParallelOptions& options, const Workload& workload, GridAxis patch_axis,
              GridAxis rank_axis) {
  if (!workload.axial_attention || options.ulysses_degree == 1) return false;
  const int64_t stages = options.pipefusion_parallel_degree;
  const bool has_patches = stages > 1 && patch_axis == GridAxis::kFrames;
  const int64_t patches = has_patches ? std::max<int64_t>(options.num_pipeline_patch.value_or(stages), 1) : 1;
  const bool is_enough =
      rank_axis == GridAxis::kFrames || workload.token_frames / patches >= options.ulysses_degree;
  return options.dynamic_sequence_parallel.value_or(is_enough);
}

}  // namespace

Division divide(const ParallelOptions& options, const Workload& workload) {
  const GridAxis patch_axis = patch_axis_of(options, workload);
  const GridAxis rank_axis = rank_axis_of(options, workload, patch_axis);
  const int64_t ranks = patch_axis == rank_axis ? options.sequence_degree() : 1;
  return {.patch_axis = patch_axis,
          .rank_axis = rank_axis,
          .dsp = uses_dsp(options, workload, patch_axis, rank_axis),
          .units = units_of(rank_axis, workload),
          .most_patches = std::max<int64_t>(1, units_of(patch_axis, workload) / ranks)};
}

// Each block goes to the stage that is then the least busy. Most of them are dealt at once: bisection finds a
// level of work per share at which not too many are dealt.
std::vector<int64_t> balanced_stages(const Workload& workload, int64_t stages, const Shares& shares) {
  std::vector<double> others(static_cast<size_t>(stages));  // work other than blocks
  others.front() += workload.embedding;
  others.back() += workload.head;
  const auto share = [&](size_t i) { return shares.of_parts.empty() ? 1.0 : shares.of_parts[i]; };
  const auto below = [&](double level) {
    std::vector<int64_t> blocks;
    for (size_t i = 0; i < others.size(); ++i)
      blocks.push_back(std::max<int64_t>(static_cast<int64_t>(level * share(i) - others[i]), 1));
    return blocks;
  };
  double largest = 0;
  for (size_t i = 0; i < others.size(); ++i) largest = std::max(largest, share(i));
  double low = 0, high = static_cast<double>(workload.blocks) / largest + others.front() + others.back();
  for (double level = high / 2; low < level && level < high; level = low + (high - low) / 2) {
    const std::vector<int64_t> blocks = below(level);
    (std::accumulate(blocks.begin(), blocks.end(), int64_t{0}) <= workload.blocks ? low : high) = level;
  }
  std::vector<int64_t> blocks = below(low);
  for (int64_t& each : blocks) each = std::max<int64_t>(each - 1, 1);  // the last ones are dealt one by one
  const auto work_with_next = [&](size_t i) {
    return (static_cast<double>(blocks[i] + 1) + others[i]) / share(i);
  };
  for (int64_t left = workload.blocks - std::accumulate(blocks.begin(), blocks.end(), int64_t{0}); left > 0;
       --left) {
    size_t least = 0;
    for (size_t i = 1; i < blocks.size(); ++i) least = work_with_next(i) < work_with_next(least) ? i : least;
    ++blocks[least];
  }
  return blocks;
}

std::pair<int64_t, int64_t> near_square(int64_t degree) {
  int64_t m = static_cast<int64_t>(std::sqrt(static_cast<double>(degree)));
  while (m > 1 && degree % m != 0) --m;
  return {std::max<int64_t>(m, 1), degree / std::max<int64_t>(m, 1)};
}

}  // namespace tessera::parallel
