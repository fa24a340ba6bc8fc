// Ulysses, the ring and the pipeline with toy functions in place of a network.
#include <gtest/gtest.h>

#include "parallel/cut.h"
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

class Schemes : public ::testing::TestWithParam<int64_t> {};  // ranks

TEST_P(Schemes, UlyssesGivesAllTokensOfOwnHeadsAndBack) {
  constexpr int64_t kBatch = 2, kTokens = 11, kParts = 3, kHeads = 5, kDepth = 4;
  const at::Tensor whole = at::randn({kBatch, kTokens, kParts * kHeads * kDepth});
  comm::run_ranks_as_threads(GetParam(), [&](comm::World world) {
    const comm::Group group = group_of_all(world, "ulysses");
    const auto parts = group.parts(kTokens);
    std::vector<int64_t> tokens;
    tokens.reserve(parts.size());
    for (const Range& part : parts) tokens.push_back(part.length);
    const Range own = group.part(kTokens), heads = group.part(kHeads);

    const at::Tensor x = whole.narrow(1, own.begin, own.length);
    const at::Tensor by_heads = tokens_to_heads(x, kParts, kHeads, tokens, group);
    const at::Tensor expected =
        whole.unflatten(2, {kParts, kHeads, kDepth}).narrow(3, heads.begin, heads.length);
    EXPECT_TRUE(at::equal(by_heads, expected.flatten(2)));

    // The first part (the queries) back.
    const at::Tensor queries = by_heads.narrow(2, 0, heads.length * kDepth).transpose(0, 1).contiguous();
    if (group.size == 1) return;
    EXPECT_TRUE(at::equal(heads_to_tokens(queries, kHeads, tokens, group), x.narrow(2, 0, kHeads * kDepth)));
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

// A toy network: stage s multiplies by s + 2 and adds a sum over what it last saw of all patches; the update
// halves.
TEST_P(Schemes, ThePipelineFollowsItsSchedule) {
  constexpr int64_t kPatches = 4, kSteps = 6;
  for (const int64_t warmup : {0, 1, 2, 6}) {
    const auto run = [&](const comm::Group& group, int64_t first_stage, int64_t stages) {
      std::vector<at::Tensor> latents, seen;
      for (int64_t s = 0; s < stages; ++s) seen.push_back(at::zeros({kPatches}, at::kDouble));
      for (int64_t patch = 0; patch < kPatches; ++patch)
        latents.push_back(at::full({1}, patch + 1.0, at::kDouble));
      std::vector<int64_t> begun, ended;
      const auto joined = [&](Range patches) {
        return at::cat(at::TensorList(latents).slice(static_cast<size_t>(patches.begin),
                                                     static_cast<size_t>(patches.length)));
      };
      const auto set = [&](Range patches, const at::Tensor& z) {
        for (int64_t i = 0; i < patches.length; ++i)
          latents[static_cast<size_t>(patches.begin + i)] = z.narrow(0, i, 1).clone();
      };
      PipelineStage stage;
      stage.input = [&](int64_t, Range patches) { return joined(patches); };
      stage.compute = [&](int64_t step, Range patches, const at::Tensor& input) {
        at::Tensor x = input;
        for (int64_t s = 0; s < stages; ++s) {
          at::Tensor& memory = seen[static_cast<size_t>(s)];
          memory.narrow(0, patches.begin, patches.length).copy_(x);
          x = x * (0.1 * static_cast<double>(first_stage + s + 2)) + memory.sum() * 0.01 +
              static_cast<double>(step);
        }
        return x;
      };
      stage.update = [&](int64_t, Range patches, const at::Tensor& output) {
        set(patches, joined(patches) * 0.5 + output);
        return joined(patches);
      };
      stage.updated = [&](int64_t, Range patches, const at::Tensor& z) { set(patches, z); };
      stage.empty_hidden =
          stage.empty_latents = [](Range patches) { return at::empty({patches.length}, at::kDouble); };
      stage.began = [&](int64_t step) { begun.push_back(step); };
      stage.ended = [&](int64_t step) { ended.push_back(step); };
      run_pipeline({kSteps, kPatches, warmup}, stage, group);
      EXPECT_EQ(begun, (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
      EXPECT_EQ(ended, begun);
      return joined({0, kPatches});
    };
    const at::Tensor expected = run({}, 0, GetParam());
    comm::run_ranks_as_threads(GetParam(), [&](comm::World world) {
      const comm::Group group = group_of_all(world, "pp");
      const at::Tensor result = run(group, group.rank, 1);
      if (group.rank != 0) return;
      EXPECT_TRUE(at::allclose(result, expected, 1e-12, 0)) << "warm-up " << warmup;
    });
  }
}

// The schedule itself: w whole steps, then patch after patch, on every rank.
TEST_P(Schemes, ThePipelineWarmsUpForAsManySteps) {
  using Run = std::array<int64_t, 3>;  // step, first patch, patches
  constexpr int64_t kPatches = 3, kSteps = 4;
  for (const int64_t warmup : {0, 1, 2, 4}) {
    std::vector<Run> expected;
    for (int64_t step = 0; step < kSteps; ++step) {
      if (step < warmup) {
        expected.push_back({step, 0, kPatches});
        continue;
      }
      for (int64_t patch = 0; patch < kPatches; ++patch) expected.push_back({step, patch, 1});
    }
    comm::run_ranks_as_threads(GetParam(), [&](comm::World world) {
      const comm::Group group = group_of_all(world, "pp");
      std::vector<Run> seen;
      const auto patches = [](Range run) { return at::zeros({run.length}); };
      PipelineStage stage;
      stage.input = [&](int64_t, Range run) { return patches(run); };
      stage.compute = [&](int64_t step, Range run, const at::Tensor& x) {
        seen.push_back({step, run.begin, run.length});
        return x;
      };
      stage.update = [&](int64_t, Range run, const at::Tensor&) { return patches(run); };
      stage.updated = [](int64_t, Range, const at::Tensor&) {};
      stage.empty_hidden = stage.empty_latents = patches;
      stage.began = stage.ended = [](int64_t) {};
      run_pipeline({kSteps, kPatches, warmup}, stage, group);
      EXPECT_EQ(seen, expected) << "warm-up " << warmup;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Schemes, ::testing::Values(1, 2, 3, 5));

TEST(TokenCut, DealsEveryRowOnce) {
  for (const int64_t patches : {1, 2, 4}) {
    comm::Group ulysses{.rank = 1, .size = 2}, ring{.rank = 2, .size = 3};
    const TokenCut cut(29, 5, patches, ulysses, ring);
    EXPECT_EQ(cut.sequence_rank(), 5);
    int64_t next = 0;
    for (int64_t patch = 0; patch < patches; ++patch) {
      for (int64_t rank = 0; rank < 6; ++rank) {
        EXPECT_EQ(cut.part(patch, rank).begin, next);
        next = cut.part(patch, rank).end();
        EXPECT_GE(cut.part(patch, rank).length, 1);
      }
    }
    EXPECT_EQ(next, 29);
    int64_t tokens = 0;
    for (int64_t rank = 0; rank < 6; ++rank) tokens += cut.token_count(cut.all_patches(), rank);
    EXPECT_EQ(tokens, 29 * 5);
  }
}

}  // namespace
}  // namespace tessera::parallel
