// Joint attention of samples whose other sequences have different lengths, against each sample alone and
// against a plain softmax.
#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>

#include "nn/tokens.h"
#include "tests/support/rank_threads.h"

namespace tessera::nn {
namespace {

constexpr parallel::Grid kJointGrid{.rows = 7, .columns = 3};
constexpr int64_t kJointHeads = 4, kJointDepth = 8, kJointWidth = kJointHeads * kJointDepth;
const std::vector<int64_t> kLengths = {5, 9, 9, 1, 5};

struct JointWay {
  int64_t ulysses, ring, patches;
  bool displaced;
  at::ScalarType dtype;
  int64_t gather = 1;

  int64_t ranks() const { return ulysses * gather * ring; }
};

class JointAttentionOnRanks : public ::testing::TestWithParam<JointWay> {
 protected:
  static TokenGroups groups_of(comm::World& world) {
    const auto& [ulysses, ring, patches, displaced, dtype, gather] = GetParam();
    const int64_t slice = ulysses * gather;
    TokenGroups groups;
    const auto add = [&](comm::Group& group, int64_t begin, int64_t stride, int64_t size, const char* name) {
      std::vector<int64_t> ranks;
      for (int64_t i = 0; i < size; ++i) ranks.push_back(begin + i * stride);
      const comm::Group one = world.group(ranks, name);
      if (std::find(ranks.begin(), ranks.end(), world.rank()) != ranks.end()) group = one;
    };
    for (int64_t i = 0; i < gather * ring; ++i) add(groups.ulysses, i * ulysses, 1, ulysses, "ulysses");
    for (int64_t i = 0; i < ring; ++i) {
      for (int64_t j = 0; j < ulysses; ++j) add(groups.gather, i * slice + j, ulysses, gather, "gather");
    }
    for (int64_t i = 0; i < slice; ++i) add(groups.ring, i, slice, ring, "ring");
    add(groups.all, 0, 1, slice * ring, "sp");
    for (const comm::Group* group : {&groups.ulysses, &groups.gather, &groups.ring, &groups.all})
      comm::connect(*group, at::kCPU);
    if (displaced) groups.displaced = {.mode = parallel::DisplacedMode::kCorrectedAsyncGn, .warmup_steps = 1};
    return groups;
  }
};

// The results of two steps for local tokens of both sequences, [B, n, C] and [B, l, C] of each run of
// patches. The first step sees all patches together. q, k and v are drawn anew for each step.
std::vector<at::Tensor> attend_twice(Tokens& tokens, const std::vector<at::Tensor>& grid,
                                     const std::vector<at::Tensor>& texts, at::ArrayRef<int64_t> lengths) {
  std::vector<at::Tensor> results;
  for (int64_t step = 0; step < 2; ++step) {
    tokens.begin(step, 2);
    const int64_t together = step == 0 ? tokens.cut().patches : 1;
    for (int64_t patch = 0; patch < tokens.cut().patches; patch += together) {
      tokens.enter({patch, together});
      tokens.enter_block(0);
      const auto own = [&](size_t i) { return tokens.local(grid[i] * (1 + step), 1); };
      const auto other = [&](size_t i) { return tokens.local_other(texts[i] * (1 + step), lengths); };
      const auto [a, b] = tokens.joint_attention({own(0), own(1), own(2)}, {other(0), other(1), other(2)},
                                                 lengths, kJointDepth);
      results.push_back(a);
      results.push_back(b);
    }
  }
  tokens.drain();
  return results;
}

TEST_P(JointAttentionOnRanks, OfEachSampleIsThatOfTheSampleAlone) {
  const JointWay& way = GetParam();
  at::manual_seed(5);
  const int64_t batch = static_cast<int64_t>(kLengths.size()), longest = 9;
  std::vector<at::Tensor> grid, texts;
  for (int64_t i = 0; i < 3; ++i) {
    grid.push_back(at::randn({batch, kJointGrid.tokens(), kJointWidth}).to(way.dtype));
    texts.push_back(at::randn({batch, longest, kJointWidth}).to(way.dtype));
  }
  comm::run_ranks_as_threads(way.ranks(), [&](comm::World world) {
    const c10::InferenceMode inference_mode;
    TokenGroups groups = groups_of(world);
    if (way.displaced) groups.ulysses = groups.ring = {};
    const parallel::Cut cut(kJointGrid, parallel::GridAxis::kRows, way.patches, world.size());
    Tokens together(cut, groups);
    const std::vector<at::Tensor> all = attend_twice(together, grid, texts, kLengths);
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t length = kLengths[static_cast<size_t>(b)];
      std::vector<at::Tensor> own_grid, own_text;
      for (size_t i = 0; i < 3; ++i) {
        own_grid.push_back(grid[i].narrow(0, b, 1));
        own_text.push_back(texts[i].narrow(0, b, 1).narrow(1, 0, length));
      }
      Tokens tokens(cut, groups);
      const std::vector<at::Tensor> alone = attend_twice(tokens, own_grid, own_text, {length});
      ASSERT_EQ(all.size(), alone.size());
      for (size_t i = 0; i < all.size(); ++i) {
        const int64_t count = alone[i].size(1);
        EXPECT_TRUE(at::equal(all[i].narrow(0, b, 1).narrow(1, 0, count), alone[i]))
            << "sample " << b << ", result " << i << ", rank " << world.rank();
        if (i % 2 == 1) {
          const Range run = i == 1 ? cut.all_patches() : Range{static_cast<int64_t>(i / 2) - 1, 1};
          EXPECT_EQ(count, together.local_other_length(length, run));
        }
      }
      // In the first step every query meets the keys of the grid and of its own text.
      const auto both = [&](size_t i) {
        return at::concat({own_grid[i], own_text[i]}, 1)
            .to(at::kDouble)
            .unflatten(2, {kJointHeads, kJointDepth})
            .transpose(1, 2);
      };
      const at::Tensor scores = at::matmul(both(0), both(1).transpose(2, 3)) / std::sqrt(double{kJointDepth});
      const at::Tensor expected = at::matmul(at::softmax(scores, -1), both(2)).transpose(1, 2).flatten(2);
      tokens.enter(cut.all_patches());
      const at::Tensor of_grid = tokens.local(expected.narrow(1, 0, kJointGrid.tokens()), 1);
      const at::Tensor of_text = tokens.local_other(expected.slice(1, kJointGrid.tokens()), 1);
      const double tolerance = way.dtype == at::kFloat ? 1e-5 : 2e-2;
      EXPECT_TRUE(at::allclose(alone[0].to(at::kDouble), of_grid, tolerance, tolerance)) << "sample " << b;
      EXPECT_TRUE(at::allclose(alone[1].to(at::kDouble), of_text, tolerance, tolerance)) << "sample " << b;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ways, JointAttentionOnRanks,
    ::testing::Values(JointWay{1, 1, 1, false, at::kFloat}, JointWay{1, 1, 1, false, at::kBFloat16},
                      JointWay{2, 1, 1, false, at::kFloat}, JointWay{3, 1, 1, false, at::kFloat},
                      JointWay{1, 2, 1, false, at::kFloat}, JointWay{1, 3, 1, false, at::kBFloat16},
                      JointWay{2, 2, 1, false, at::kFloat}, JointWay{1, 1, 1, false, at::kFloat, 2},
                      JointWay{1, 1, 1, false, at::kBFloat16, 3}, JointWay{2, 2, 1, false, at::kFloat, 2},
                      JointWay{1, 1, 2, false, at::kFloat, 2}, JointWay{1, 2, 2, false, at::kFloat, 2},
                      JointWay{1, 1, 3, false, at::kFloat}, JointWay{1, 1, 3, false, at::kBFloat16},
                      JointWay{2, 1, 2, false, at::kFloat}, JointWay{1, 2, 2, false, at::kFloat},
                      JointWay{2, 1, 1, true, at::kFloat}, JointWay{4, 1, 1, true, at::kFloat}));

}  // namespace
}  // namespace tessera::nn
