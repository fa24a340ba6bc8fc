#include "parallel/layout.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "core/error.h"
#include "core/text.h"
#include "parallel/layout_advice.h"
#include "parallel/layout_rules.h"

namespace tessera::parallel {
namespace {

constexpr int64_t kDefaultWarmupSteps = 1, kDefaultDisplacedWarmupSteps = 4;
// The limit counts rows per rank at the coarsest scale. With fewer rows, the correction of stale moments is
// too far off, and images turn black (mit-han-lab/distrifuser, issue 7: 8 and 12 rows on 4 ranks).
constexpr int64_t kFewRows = 4;

std::string advice(const ParallelOptions& options, const Workload& workload,
                   std::optional<int64_t> world_size) {
  std::vector<std::string> found;
  for (const ParallelOptions& valid : nearest_valid(options, workload, world_size)) {
    const std::string degrees = degrees_text(valid);
    found.push_back(
        fmt::format("{} on {}", degrees.empty() ? "no degrees" : degrees, counted(valid.degrees(), "rank")));
  }
  return fmt::format("; nearest valid: {}", fmt::join(found, ", or "));
}

// Returns the shares relative to the largest one, so that their sums are finite; empty if all are equal.
std::vector<double> relative(std::vector<double> shares) {
  if (shares.empty()) return shares;
  const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
  if (*least == *most) return {};
  const double largest = *most;
  for (double& share : shares) share /= largest;
  return shares;
}

// Makes the layout of options that follow every rule.
Layout make_layout(const ParallelOptions& options, const Workload& workload) {
  Layout layout;
  const auto [outer, inner] = options.split_scheme == SplitScheme::k2d
                                  ? near_square(options.tensor_parallel_degree)
                                  : std::pair<int64_t, int64_t>{1, options.tensor_parallel_degree};
  layout.sizes[Axis::kTensorInner] = inner;
  layout.sizes[Axis::kTensorOuter] = outer;
  layout.sizes[Axis::kUlysses] = options.ulysses_degree;
  layout.sizes[Axis::kGather] = options.kv_gather_degree;
  layout.sizes[Axis::kRing] = options.ring_degree;
  layout.sizes[Axis::kDisplaced] = options.displaced_patch_degree;
  layout.sizes[Axis::kPipeline] = options.pipefusion_parallel_degree;
  layout.sizes[Axis::kCfg] = options.cfg_degree();
  layout.sizes[Axis::kData] = options.data_parallel_degree;
  const Division division = divide(options, workload);
  layout.patch_axis = division.patch_axis;
  layout.rank_axis = division.rank_axis;
  layout.dsp = division.dsp;
  layout.rank_shares = relative(options.rank_shares);
  constexpr Axis kPipeline = Axis::kPipeline, kDisplaced = Axis::kDisplaced;
  layout.stage_blocks = options.attn_layer_num_for_pp.empty()
                            ? balanced_stages(workload, options.pipefusion_parallel_degree,
                                              layout.shares(std::span(&kPipeline, 1)))
                            : options.attn_layer_num_for_pp;
  if (options.pipefusion_parallel_degree > 1) {
    layout.patches = options.num_pipeline_patch.value_or(
        std::min(options.pipefusion_parallel_degree, division.most_patches));
    layout.warmup_steps = std::min(options.warmup_steps.value_or(kDefaultWarmupSteps), workload.steps);
  }
  if (options.displaced_patch_degree > 1) {
    // In a transformer, only attention sees the rows of other ranks.
    const std::vector<Range> parts = split_by_shares(division.units, options.displaced_patch_degree,
                                                     layout.shares(std::span(&kDisplaced, 1)));
    const bool has_few_rows =
        workload.has_group_norms &&
        std::any_of(parts.begin(), parts.end(), [](const Range& part) { return part.length < kFewRows; });
    layout.displaced_mode_was_changed = has_few_rows && !options.displaced_mode;
    layout.displacement = {.mode = options.displaced_mode.value_or(
                               has_few_rows ? DisplacedMode::kSyncGn : DisplacedMode::kCorrectedAsyncGn),
                           .warmup_steps = options.warmup_steps.value_or(kDefaultDisplacedWarmupSteps)};
  }
  layout.is_all_warmup =
      (layout.displacement ? layout.displacement->warmup_steps : layout.warmup_steps) >= workload.steps;
  layout.text_encoder_parallel = options.text_encoder_parallel.value_or(true);
  layout.vae_parallel = options.vae_parallel.value_or(true);
  if (options.simulate_ranks) {
    layout.sizes = PerAxis{1};
    layout.stage_blocks = {workload.blocks};
  }
  return layout;
}

}  // namespace

Range Layout::stage(int64_t rank) const {
  Range blocks;
  for (int64_t i = 0; i <= rank; ++i) blocks = {blocks.end(), stage_blocks[static_cast<size_t>(i)]};
  return blocks;
}

Shares Layout::shares(std::span<const Axis> axes) const {
  Shares made;
  const auto has = [&](Axis axis) { return std::find(axes.begin(), axes.end(), axis) != axes.end(); };
  // Parts must be large enough for methods that divide them further.
  const int64_t of_ulysses = dsp ? 1 : sizes[Axis::kUlysses];
  if (has(Axis::kTensorOuter)) {
    made.least = of_ulysses;
  } else if (has(Axis::kTensorInner)) {
    made.least = of_ulysses * sizes[Axis::kTensorOuter];
  }
  if (rank_shares.empty()) return made;
  const Mesh mesh(sizes);
  TESSERA_CHECK(std::ssize(rank_shares) == mesh.world_size(), "{} shares for {} ranks", rank_shares.size(),
                mesh.world_size());
  std::map<int64_t, double> sums;  // by the first rank with the member's coordinates
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    PerAxis place = mesh.coordinates(rank);
    for (const Axis axis : kAllAxes) place[axis] = has(axis) ? place[axis] : 0;
    sums[mesh.rank_at(place)] += rank_shares[static_cast<size_t>(rank)];
  }
  for (const auto& [first, sum] : sums) made.of_parts.push_back(sum);
  return made;
}

Layout resolve_layout(const ParallelOptions& options, const Workload& workload,
                      std::optional<int64_t> world_size) {
  check_fields(parallel_fields(), options);
  const std::vector<Violation> broken = violations(options, workload, world_size);
  if (!broken.empty()) {
    std::vector<std::string> rules;
    rules.reserve(broken.size());
    for (const Violation& violation : broken) rules.push_back(describe(violation, options, workload));
    usage_error("parallel", "{}{}", fmt::join(rules, "; "),
                is_of_degrees(broken.front().rule) ? advice(options, workload, world_size) : "");
  }
  return make_layout(options, workload);
}

}  // namespace tessera::parallel
