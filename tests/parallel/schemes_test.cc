// Tests Ulysses, the ring and the pipeline with toy functions in place of a network.
#include <gtest/gtest.h>

#include <array>

#include "comm/collectives.h"
#include "parallel/grid.h"
#include "parallel/pipefusion.h"
#include "parallel/ring.h"
#include "parallel/ulysses.h"
#include "tests/support/rank_threads.h"

namespace tessera::parallel {
namespace {

comm::Group group_of_all(comm::World& world, const std::string& axis) {
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; rank < world.size(); ++rank) ranks.push_back(rank);
  return world.group(ranks, axis);
}

comm::Group pipeline_of_all(comm::World& world) {
  comm::Group group = group_of_all(world, "pp");
  comm::connect(group, at::kCPU, comm::Posting::kOneWay);
  return group;
}

// Returns false if the stage has ended the run early.
bool run_pipeline(const PipelineSchedule& schedule, PipelineStage& stage, const comm::Group& group) {
  Pipeline pipeline(schedule, stage, group);
  while (!pipeline.is_done()) {
    if (!pipeline.advance()) return false;
  }
  return true;
}

class Schemes : public ::testing::TestWithParam<int64_t> {};  // ranks

TEST_P(Schemes, UlyssesGivesAllTokensOfOwnHeadsAndBack) {
  constexpr int64_t kBatch = 2, kTokens = 11, kParts = 4, kHeads = 5, kDepth = 4;
  const at::Tensor whole = at::randn({kBatch, kTokens, kParts * kHeads * kDepth});
  comm::run_ranks_as_threads(GetParam(), [&](comm::World world) {
    const comm::Group group = group_of_all(world, "ulysses");
    const auto parts = group.parts(kTokens);
    std::vector<int64_t> tokens;
    tokens.reserve(parts.size());
    for (const Range& part : parts) tokens.push_back(part.length);
    const Range own = group.part(kTokens), heads = group.part(kHeads);

    const at::Tensor x = whole.narrow(1, own.begin, own.length);
    // There are two heads of queries for each head of keys and values.
    const auto parts_of = [=](const at::Tensor& all) {
      std::vector<at::Tensor> queries_keys_values;
      for (const Range& part : {Range{0, 2}, Range{2, 1}, Range{3, 1}})
        queries_keys_values.push_back(
            all.narrow(2, part.begin * kHeads * kDepth, part.length * kHeads * kDepth));
      return queries_keys_values;
    };
    const std::vector<at::Tensor> by_heads = tokens_to_heads(parts_of(x), kHeads, tokens, group);
    ASSERT_EQ(by_heads.size(), 3U);
    for (size_t i = 0; i < 3; ++i) {
      const int64_t unit = (i == 0 ? 2 : 1) * kDepth;
      EXPECT_TRUE(
          at::equal(by_heads[i], parts_of(whole)[i].narrow(2, heads.begin * unit, heads.length * unit)));
    }

    // The queries go back.
    const at::Tensor queries = by_heads[0].transpose(0, 1).contiguous();
    if (group.size == 1) return;
    EXPECT_TRUE(
        at::equal(heads_to_tokens(queries, 2 * kHeads * kDepth, kHeads, tokens, group), parts_of(x)[0]));
  });
}

TEST_P(Schemes, TheRingShowsEveryBlockOnceTheOwnFirst) {
  comm::run_ranks_as_threads(GetParam(), [&](comm::World world) {
    const comm::Group group = group_of_all(world, "ring");
    std::vector<int64_t> lengths;
    for (int64_t rank = 0; rank < group.size; ++rank) lengths.push_back(rank + 2);
    std::vector<int64_t> seen;
    ring_pass(at::full({group.rank + 2, 3}, group.rank), lengths, group, [&](const at::Tensor& block) {
      seen.push_back(block[0][0].item<int64_t>());
      EXPECT_EQ(block.size(0), seen.back() + 2);
      EXPECT_TRUE(block.eq(seen.back()).all().item<bool>());
    });
    ASSERT_EQ(static_cast<int64_t>(seen.size()), group.size);
    for (int64_t hop = 0; hop < group.size; ++hop)
      EXPECT_EQ(seen[static_cast<size_t>(hop)], (group.rank + group.size - hop) % group.size);
  });
}

// A toy network: stage s multiplies by s + 2 and adds a sum over the latest input of every patch; the update
// halves. A second tensor, of another length, passes through and counts the stages.
class ToyStage : public PipelineStage {
 public:
  using Run = std::array<int64_t, 3>;  // step, first patch, patches

  ToyStage(int64_t patches, int64_t first_stage, int64_t stages) : first_stage_(first_stage) {
    for (int64_t s = 0; s < stages; ++s) seen_.push_back(at::zeros({patches}, at::kDouble));
    for (int64_t patch = 0; patch < patches; ++patch)
      latents_.push_back(at::full({1}, patch + 1.0, at::kDouble));
  }

  Tensors compute(int64_t step, Range patches, Tensors hidden) override {
    runs.push_back({step, patches.begin, patches.length});
    if (first_stage_ == 0) hidden = {joined(patches), at::zeros({2}, at::kDouble)};
    for (size_t s = 0; s < seen_.size(); ++s) {
      seen_[s].narrow(0, patches.begin, patches.length).copy_(hidden[0]);
      hidden[0] = hidden[0] * (0.1 * static_cast<double>(first_stage_ + static_cast<int64_t>(s) + 2)) +
                  seen_[s].sum() * 0.01 + static_cast<double>(step);
      hidden[1] = hidden[1] + 1;
    }
    return hidden;
  }
  at::Tensor update(int64_t, Range patches, const Tensors& output) override {
    set(patches, joined(patches) * 0.5 + output[0] + output[1].sum());
    return joined(patches);
  }
  void updated(int64_t, Range patches, const at::Tensor& z) override { set(patches, z); }
  Tensors empty_hidden(Range patches) const override {
    return {empty_latents(patches), at::empty({2}, at::kDouble)};
  }
  at::Tensor empty_latents(Range patches) const override { return at::empty({patches.length}, at::kDouble); }
  Tensors empty_output(Range patches) const override { return empty_hidden(patches); }
  bool began(int64_t step) override {
    if (step == last_step) return false;
    begun.push_back(step);
    return true;
  }
  void ended(int64_t step) override { steps_ended.push_back(step); }

  at::Tensor joined(Range patches) const {
    return at::concat(at::TensorList(latents_).slice(static_cast<size_t>(patches.begin),
                                                     static_cast<size_t>(patches.length)));
  }

  std::vector<Run> runs;
  std::vector<int64_t> begun, steps_ended;
  int64_t last_step = -1;  // the run ends before it

 private:
  void set(Range patches, const at::Tensor& z) {
    for (int64_t i = 0; i < patches.length; ++i)
      latents_[static_cast<size_t>(patches.begin + i)] = z.narrow(0, i, 1).clone();
  }

  int64_t first_stage_;
  std::vector<at::Tensor> latents_, seen_;
};

TEST_P(Schemes, ThePipelineFollowsItsSchedule) {
  constexpr int64_t kPatches = 4, kSteps = 6;
  for (const int64_t warmup : {0, 1, 2, 6}) {
    const auto run = [&](const comm::Group& group, int64_t first_stage, int64_t stages) {
      ToyStage stage(kPatches, first_stage, stages);
      run_pipeline({kSteps, 0, kPatches, warmup}, stage, group);
      EXPECT_EQ(stage.begun, (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
      EXPECT_EQ(stage.steps_ended, stage.begun);
      return stage.joined({0, kPatches});
    };
    const at::Tensor expected = run({}, 0, GetParam());
    comm::run_ranks_as_threads(GetParam(), [&](comm::World world) {
      const comm::Group group = pipeline_of_all(world);
      const at::Tensor result = run(group, group.rank, 1);
      if (group.rank != 0) return;
      EXPECT_TRUE(at::allclose(result, expected, 1e-12, 0)) << "warm-up " << warmup;
    });
  }
}

// Every rank takes w whole steps, and then patch after patch.
TEST_P(Schemes, ThePipelineWarmsUpForAsManySteps) {
  constexpr int64_t kPatches = 3, kSteps = 4;
  for (const int64_t warmup : {0, 1, 2, 4}) {
    std::vector<ToyStage::Run> expected;
    for (int64_t step = 0; step < kSteps; ++step) {
      if (step < warmup) {
        expected.push_back({step, 0, kPatches});
        continue;
      }
      for (int64_t patch = 0; patch < kPatches; ++patch) expected.push_back({step, patch, 1});
    }
    comm::run_ranks_as_threads(GetParam(), [&](comm::World world) {
      const comm::Group group = pipeline_of_all(world);
      ToyStage stage(kPatches, group.rank, 1);
      run_pipeline({kSteps, 0, kPatches, warmup}, stage, group);
      EXPECT_EQ(stage.runs, expected) << "warm-up " << warmup;
    });
  }
}

// All messages of a run that ends early have arrived, so it does not affect the next run over the same
// connections.
TEST_P(Schemes, APipelineThatEndsEarlyLeavesNothingBehind) {
  constexpr int64_t kPatches = 4, kSteps = 6;
  for (const comm::Wire wire : {comm::Wire::kOrdered, comm::Wire::kShared, comm::Wire::kGloo}) {
    comm::run_ranks_as_threads(
        GetParam(),
        [&](comm::World world) {
          const comm::Group group = pipeline_of_all(world);
          for (const int64_t warmup : {0, 1, 3}) {
            const auto run = [&](const comm::Group& over, int64_t stages, int64_t last_step) {
              ToyStage stage(kPatches, over.rank, stages);
              stage.last_step = last_step;
              EXPECT_EQ(run_pipeline({kSteps, 0, kPatches, warmup}, stage, over), last_step < 0);
              const auto steps = static_cast<size_t>(last_step < 0 ? kSteps : last_step);
              EXPECT_EQ(stage.begun.size(), steps);
              EXPECT_EQ(stage.steps_ended.size(), steps);
              return stage.joined({0, kPatches});
            };
            for (int64_t last_step = 0; last_step < kSteps; ++last_step) {
              run(group, 1, last_step);
              const at::Tensor result = run(group, 1, -1);
              if (group.rank != 0) continue;
              EXPECT_TRUE(at::allclose(result, run({}, GetParam(), -1), 1e-12, 0))
                  << "warm-up " << warmup << ", ended before step " << last_step;
            }
          }
        },
        wire);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Schemes, ::testing::Values(1, 2, 3, 5));

// Checks that exactly one rank holds each token, and that local tokens are in the order of the grid.
void expect_every_token_once(const Cut& cut) {
  const at::Tensor all = at::arange(cut.grid.tokens());
  at::Tensor held = at::zeros({cut.grid.tokens()}, at::kLong);
  for (int64_t rank = 0; rank < cut.ranks; ++rank) {
    const std::vector<Range> tokens = cut.tokens(cut.all_patches(), rank);
    const at::Tensor places = select_ranges(all, 0, tokens);
    EXPECT_EQ(places.numel(), cut.held(cut.all_patches(), rank).tokens());
    EXPECT_TRUE((places.narrow(0, 1, places.numel() - 1) > places.narrow(0, 0, places.numel() - 1))
                    .all()
                    .item<bool>());
    assign_ranges(held, 0, tokens, select_ranges(held, 0, tokens) + 1);
    for (int64_t patch = 0; patch < cut.patches; ++patch) {
      EXPECT_GE(cut.part(patch, rank).length, 1);
      EXPECT_EQ(cut.part(patch, rank).begin % cut.unit, 0);
      const Range rest{patch, cut.patches - patch};  // a run that does not begin with the first patch
      for (const Range& run : {cut.all_patches(), rest}) {
        const at::Tensor of_run = select_ranges(all, 0, cut.tokens(run, rank));
        const at::Tensor of_patch = select_ranges(of_run, 0, cut.tokens_within(run, patch, rank));
        EXPECT_TRUE(at::equal(of_patch, select_ranges(all, 0, cut.tokens({patch, 1}, rank))));
      }
    }
  }
  EXPECT_TRUE(held.eq(1).all().item<bool>());
}

TEST(Cut, DealsEveryTokenOnce) {
  int64_t cuts = 0;
  for (const Grid& grid : {Grid{1, 29, 5}, Grid{3, 29, 5}, Grid{29, 2, 3}, Grid{13, 29, 2}}) {
    for (const auto patch_axis : {GridAxis::kRows, GridAxis::kFrames}) {
      for (const auto rank_axis : {GridAxis::kRows, GridAxis::kFrames}) {
        for (const int64_t patches : {1, 2, 4}) {
          for (const int64_t unit : {1, 3}) {
            const int64_t ranks = 2;
            const Cut cut(grid, patch_axis, 1, rank_axis, ranks, unit);
            const int64_t nested = patch_axis == rank_axis ? patches : 1;
            if (patches * unit > cut.lines(patch_axis) || nested * ranks * unit > cut.lines(rank_axis))
              continue;
            expect_every_token_once({grid, patch_axis, patches, rank_axis, ranks, unit});
            ++cuts;
          }
        }
      }
    }
  }
  EXPECT_GT(cuts, 30);
}

}  // namespace
}  // namespace tessera::parallel
