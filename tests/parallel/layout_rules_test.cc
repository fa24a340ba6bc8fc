#include "parallel/layout_rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "parallel/layout_advice.h"
#include "tests/support/degrees.h"

namespace tessera::parallel {
namespace {

// Wishes and workloads at random, of which a good part breaks no rule.
class Wishes {
 public:
  ParallelOptions options() {
    ParallelOptions wish;
    for (const Degree& degree : kDegrees) {
      if (one_in(4)) wish.*degree.value = any_of({1, 2, 3, 4, 5, 8, 17});
      if (one_in(60)) wish.*degree.value = any_of({-1, 0, 4096, 4097});
    }
    wish.use_cfg_parallel = one_in(3);
    wish.simulate_ranks = one_in(12);
    if (one_in(12)) wish.nproc = any_of({0, 1, 2, 4, 8});
    if (one_in(6)) wish.split_scheme = one_in(2) ? SplitScheme::k1d : SplitScheme::k2d;
    if (one_in(12)) wish.dynamic_sequence_parallel = one_in(2);
    if (one_in(6)) wish.num_pipeline_patch = any_of({0, 1, 2, 3, 5, 9, 16, 33});
    if (one_in(12)) wish.pipeline_patch_axis = one_in(2) ? GridAxis::kRows : GridAxis::kFrames;
    if (one_in(12)) wish.displaced_mode = DisplacedMode::kNoSync;
    if (one_in(12)) wish.warmup_steps = any_of({-1, 0, 1, 30});
    if (one_in(12)) wish.attn_layer_num_for_pp = {any_of({14, 1, 0}), any_of({14, 2})};
    const int64_t shares = one_in(4) ? std::clamp<int64_t>(wish.degrees(), 1, 64) : one_in(60) ? 1 : 0;
    for (int64_t i = 0; i < shares; ++i)
      wish.rank_shares.push_back(static_cast<double>(any_of({1, 2, 3, 9})));
    if (shares > 0 && one_in(12)) wish.rank_shares.front() = one_in(2) ? 0 : std::nan("");
    if (one_in(12)) wish.text_encoder_parallel = one_in(2);
    if (one_in(12)) wish.vae_parallel = one_in(2);
    return wish;
  }

  Workload workload() {
    Workload made{.heads = any_of({1, 3, 16}),
                  .blocks = any_of({1, 3, 28}),
                  .token_rows = any_of({1, 4, 15, 33}),
                  .steps = 20,
                  .pictures = any_of({1, 2, 8}),
                  .guided = !one_in(4),
                  .has_elementwise_sampler = !one_in(4),
                  .has_elementwise_guidance = !one_in(4)};
    if (one_in(4)) {  // a U-Net
      made.row_unit = 4;
      made.has_streams = false;
    } else {
      made.token_frames = any_of({1, 1, 2, 15});
      made.axial_attention = one_in(2);
    }
    return made;
  }

  std::optional<int64_t> world() { return one_in(6) ? std::optional(any_of({1, 2, 4, 6})) : std::nullopt; }

 private:
  bool one_in(uint64_t count) { return random_() % count == 0; }
  int64_t any_of(std::initializer_list<int64_t> values) {
    return values.begin()[random_() % values.size()];  // NOLINT(*-pointer-arithmetic)
  }

  std::mt19937_64 random_{5};
};

TEST(LayoutRules, AreBrokenExactlyWhereALayoutIsRefused) {
  Wishes wishes;
  std::set<Rule> seen;
  int64_t kept = 0;
  for (int i = 0; i < 5000; ++i) {
    const ParallelOptions options = wishes.options();
    const Workload workload = wishes.workload();
    const std::optional<int64_t> world = wishes.world();
    const std::vector<Violation> broken = violations(options, workload, world);
    for (const Violation& violation : broken) seen.insert(violation.rule);
    kept += broken.empty() ? 1 : 0;
    const std::string line = refusal(options, workload, world);
    ASSERT_EQ(broken.empty(), line.empty()) << line;
    for (const Violation& violation : broken) {
      if (violation.rule == Rule::kRange) continue;
      const std::string words = spell(describe(violation, options, workload));
      EXPECT_NE(line.find(words), std::string::npos) << "no '" << words << "' in: " << line;
    }
  }
  EXPECT_GE(kept, 400);
  EXPECT_EQ(seen.size(), static_cast<size_t>(Rule::kStageBlocks) + 1) << "a rule is never broken";
}

TEST(LayoutRules, LeaveWorkForEveryRank) {
  Wishes wishes;
  int64_t divided = 0;
  for (int i = 0; i < 20000; ++i) {
    const ParallelOptions options = wishes.options();
    const Workload workload = wishes.workload();
    if (!violations(options, workload).empty()) continue;
    const Layout layout = resolve_layout(options, workload, std::nullopt);
    EXPECT_EQ(std::accumulate(layout.stage_blocks.begin(), layout.stage_blocks.end(), int64_t{0}),
              workload.blocks);
    for (const int64_t blocks : layout.stage_blocks) EXPECT_GE(blocks, 1);
    const Mesh mesh(layout.sizes);
    EXPECT_EQ(mesh.world_size(), options.simulate_ranks ? 1 : options.degrees());
    const int64_t ranks = mesh.size(kSequenceAxes);
    const Cut cut({.frames = workload.token_frames, .rows = workload.token_rows}, layout.patch_axis,
                  layout.patches, layout.rank_axis, ranks, workload.row_unit, layout.shares(kSequenceAxes));
    for (int64_t rank = 0; rank < ranks; ++rank) {
      for (int64_t patch = 0; patch < layout.patches; ++patch)
        EXPECT_GE(cut.held({patch, 1}, rank).tokens(), 1);
    }
    divided += ranks > 1 && layout.patches > 1 ? 1 : 0;
  }
  EXPECT_GE(divided, 20);
}

TEST(LayoutRules, OfDegreesAreKeptByTheNearestSettings) {
  Wishes wishes;
  int64_t advised = 0;
  for (int i = 0; i < 300; ++i) {
    const ParallelOptions options = wishes.options();
    const Workload workload = wishes.workload();
    const std::vector<Violation> broken = violations(options, workload);
    if (broken.empty() || broken.front().rule == Rule::kRange || !is_of_degrees(broken.front().rule))
      continue;
    for (const ParallelOptions& valid : nearest_valid(options, workload, std::nullopt)) {
      EXPECT_TRUE(are_in_range(valid));
      EXPECT_TRUE(degree_violations(valid, workload).empty());
      ++advised;
    }
  }
  EXPECT_GE(advised, 100);
}

}  // namespace
}  // namespace tessera::parallel
