#include "parallel/layout_advice.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "parallel/layout_rules.h"
#include "parallel/layout_search.h"

namespace tessera::parallel {
namespace {

// Finds the valid degrees nearest to the requested ones; distance is counted in factors of two.
class Nearest {
 public:
  Nearest(const ParallelOptions& wish, const Workload& workload) : wish_(wish), workload_(workload) {}

  void visit(ParallelOptions candidate) {
    double far = 0;
    if (candidate.split_scheme == SplitScheme::k2d &&
        near_square(candidate.tensor_parallel_degree).first == 1) {
      candidate.split_scheme.reset();
      far = 1;
    }
    if (!degree_violations(candidate, workload_).empty()) return;
    far += distance(candidate.cfg_degree(), wish_.cfg_degree());
    for (const Degree& degree : kDegrees) far += distance(candidate.*degree.value, wish_.*degree.value);
    if (far < least_ - 1e-9) {
      least_ = far;
      best_ = candidate;
    }
  }
  const std::optional<ParallelOptions>& best() const { return best_; }

 private:
  static double distance(int64_t a, int64_t b) {
    return std::abs(std::log2(static_cast<double>(a) / static_cast<double>(std::max<int64_t>(b, 1))));
  }

  const ParallelOptions& wish_;
  const Workload& workload_;
  double least_ = std::numeric_limits<double>::infinity();
  std::optional<ParallelOptions> best_;
};

// Returns an upper bound of a degree in valid settings. Methods that change the image (PipeFusion, displaced
// patches), and gathered keys and values, which divide what Ring divides, are only suggested if the wish has
// them.
int64_t most_of(const Degree& degree, const ParallelOptions& wish, const Workload& workload) {
  using O = ParallelOptions;
  const int64_t lines =
      workload.has_elementwise_sampler ? std::max(workload.token_rows, workload.token_frames) : 1;
  if (degree.value == &O::data_parallel_degree) return workload.pictures;
  if (degree.value == &O::tensor_parallel_degree) return workload.heads;
  if (degree.value == &O::ulysses_degree)
    return workload.axial_attention ? lines : std::min(workload.heads, lines);
  if (degree.value == &O::ring_degree) return lines;
  if (wish.*degree.value == 1) return 1;
  return degree.value == &O::pipefusion_parallel_degree ? workload.most_stages() : lines;
}

// Finds the nearest valid degrees for exactly `world_size` ranks.
std::optional<ParallelOptions> nearest_degrees(const ParallelOptions& wish, const Workload& workload,
                                               int64_t world_size) {
  Nearest nearest(wish, workload);
  for_each_product(
      wish, world_size, [&](const Degree& degree) { return most_of(degree, wish, workload); },
      [&](const ParallelOptions& candidate) { nearest.visit(candidate); });
  return nearest.best();
}

// Finds the nearest valid degrees with the methods of the wish, none of them higher than requested.
std::optional<ParallelOptions> lower_degrees(const ParallelOptions& wish, const Workload& workload) {
  Nearest nearest(wish, workload);
  const auto visit = [&](const ParallelOptions& most) {
    ParallelOptions candidate = most;
    candidate.nproc.reset();
    candidate.use_cfg_parallel &= workload.guided;
    candidate.data_parallel_degree = std::min(candidate.data_parallel_degree, workload.pictures);
    candidate.pipefusion_parallel_degree =
        std::min(candidate.pipefusion_parallel_degree, workload.most_stages());
    const int64_t lines = workload.has_elementwise_sampler ? divide(candidate, workload).units : 1;
    candidate.displaced_patch_degree = std::min(candidate.displaced_patch_degree, lines);
    const int64_t most_tensor = std::min(candidate.tensor_parallel_degree, workload.heads);
    for (int64_t tensor = 1; tensor <= most_tensor; ++tensor) {
      candidate.tensor_parallel_degree = tensor;
      // If attention is axial, there may be more ranks for frames than for heads.
      for (const int64_t bound : {lines, std::min(lines, workload.token_frames)}) {
        candidate.ulysses_degree = std::min(most.ulysses_degree, bound);
        if (!divide(candidate, workload).dsp)
          candidate.ulysses_degree = std::min(candidate.ulysses_degree, workload.heads / tensor);
        const int64_t per_ulysses = lines / candidate.ulysses_degree;
        candidate.kv_gather_degree = std::min(most.kv_gather_degree, per_ulysses);
        candidate.ring_degree = std::min(most.ring_degree, per_ulysses / candidate.kv_gather_degree);
        nearest.visit(candidate);
      }
    }
  };
  ParallelOptions fresh = wish, displaced = wish;
  fresh.displaced_patch_degree = 1;
  displaced.ring_degree = displaced.kv_gather_degree = displaced.ulysses_degree =
      displaced.pipefusion_parallel_degree = 1;
  for (const ParallelOptions& candidate : {wish, fresh, displaced}) visit(candidate);
  return nearest.best();
}

}  // namespace

std::vector<ParallelOptions> nearest_valid(const ParallelOptions& wish, const Workload& workload,
                                           std::optional<int64_t> world_size) {
  constexpr int64_t kLargestSearched = 4096;
  std::vector<ParallelOptions> found;
  const auto lower = world_size ? std::nullopt : lower_degrees(wish, workload);
  if (lower && lower->degrees() > 1) found.push_back(*lower);
  const int64_t most = wish.simulate_ranks ? wish.degrees() : ranks_of(wish, world_size);
  for (int64_t size = std::clamp<int64_t>(most, 1, kLargestSearched); size >= 1; --size) {
    const auto nearest = nearest_degrees(wish, workload, size);
    if (!nearest) continue;
    if (found.empty() || (found.front() != *nearest && size > 1)) found.push_back(*nearest);
    break;
  }
  return found;
}

}  // namespace tessera::parallel
