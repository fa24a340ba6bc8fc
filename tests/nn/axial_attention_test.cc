// Attention within frames and along them on ranks, against the same on one rank.
#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include "comm/collectives.h"
#include "nn/rotary.h"
#include "nn/tokens.h"
#include "tests/support/rank_threads.h"

namespace tessera::nn {
namespace {

constexpr int64_t kHeads = 4, kDepth = 8, kWidth = kHeads * kDepth, kBatch = 2;
// No number of ranks divides it.
constexpr parallel::Grid kGrid{.frames = 7, .rows = 9, .columns = 3};

struct Layers {
  at::Tensor in = at::randn({kWidth, 3 * kWidth}) * 0.3, out = at::randn({kWidth, kWidth}) * 0.3;

  AttentionLayers layers() const {
    return {[this](const at::Tensor& x, const at::Tensor& angles) -> QueriesKeysValues {
              const auto parts = at::matmul(x, in).chunk(3, 2);
              const auto rotated = [&](const at::Tensor& part) {
                return angles.defined() ? rotate(part, angles) : part;
              };
              return {rotated(parts[0]), rotated(parts[1]), parts[2].contiguous()};
            },
            [this](const at::Tensor& x) { return at::matmul(x, out); }};
  }
};

struct Ways {
  parallel::GridAxis axis, patch_axis;
  int64_t ulysses, gather, ring, patches;
  bool dsp;
  Over over;

  int64_t ranks() const { return ulysses * gather * ring; }
};

class AxialAttentionOnRanks : public ::testing::TestWithParam<Ways> {};

comm::Group subgroup(comm::World& world, int64_t begin, int64_t stride, int64_t size, const char* name) {
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < size; ++i) ranks.push_back(begin + i * stride);
  return world.group(ranks, name);
}

// Bytes that the ranks of Ulysses send in one call.
struct Sent {
  int64_t bytes = 0;
};

// Runs all patches together and returns the local part of the result.
at::Tensor attend(Tokens& tokens, const Layers& layers, const at::Tensor& x, const at::Tensor& angles,
                  Over over) {
  tokens.enter(tokens.cut().all_patches());
  tokens.enter_block(0);
  return tokens.axial_attention(tokens.local(x, 1), kDepth, over,
                                over == Over::kTemporal ? angles : at::Tensor(), layers.layers());
}

TokenGroups groups_of(comm::World& world, const Ways& way) {
  TokenGroups groups;
  const int64_t rank = world.rank(), slice = way.ulysses * way.gather;
  for (int64_t i = 0; i < way.gather * way.ring; ++i) {
    const comm::Group own = subgroup(world, i * way.ulysses, 1, way.ulysses, "ulysses");
    if (i == rank / way.ulysses) groups.ulysses = own;
  }
  for (int64_t i = 0; i < way.ring; ++i) {
    for (int64_t j = 0; j < way.ulysses; ++j) {
      const comm::Group own = subgroup(world, i * slice + j, way.ulysses, way.gather, "gather");
      if (i == rank / slice && j == rank % way.ulysses) groups.gather = own;
    }
  }
  for (int64_t i = 0; i < slice; ++i) {
    const comm::Group own = subgroup(world, i, slice, way.ring, "ring");
    if (i == rank % slice) groups.ring = own;
  }
  groups.all = subgroup(world, 0, 1, way.ranks(), "sp");
  for (const comm::Group* group : {&groups.ulysses, &groups.gather, &groups.ring, &groups.all})
    comm::connect(*group, at::kCPU);
  groups.dsp = way.dsp;
  return groups;
}

TEST_P(AxialAttentionOnRanks, EqualsOneRank) {
  const Ways way = GetParam();
  at::manual_seed(7);
  const Layers layers;
  const at::Tensor x = at::randn({kBatch, kGrid.tokens(), kWidth});
  const at::Tensor angles = rotary_table(at::arange(kGrid.frames).unsqueeze(1), {{kDepth}});
  Tokens alone(kGrid);
  const at::Tensor expected = attend(alone, layers, x, angles, way.over);
  std::vector<Sent> sent(static_cast<size_t>(way.ranks()));
  comm::run_ranks_as_threads(way.ranks(), [&](comm::World world) {
    const c10::InferenceMode inference_mode;
    comm::CollectiveHooks hooks;
    hooks.began = [&](const comm::Collective& collective) {
      if (collective.axis == "ulysses") sent[static_cast<size_t>(world.rank())].bytes += collective.bytes;
    };
    world.set_hooks(hooks);
    Tokens tokens(parallel::Cut(kGrid, way.patch_axis, way.patches, way.axis, world.size()),
                  groups_of(world, way));
    const at::Tensor own = attend(tokens, layers, x, angles, way.over);
    EXPECT_TRUE(at::allclose(own, tokens.local(expected, 1), 1e-5, 1e-5)) << "rank " << world.rank();
    world.set_hooks({});
  });
  if (way.gather * way.ring > 1 || way.patches > 1) return;
  int64_t bytes = 0;
  for (const Sent& one : sent) bytes += one.bytes;
  const int64_t activation = kBatch * kGrid.tokens() * kWidth * 4;
  const bool is_whole = (way.over == Over::kSpatial) == (way.axis == parallel::GridAxis::kFrames);
  // Of an activation, each rank keeps about its share. DSP exchanges two, Ulysses four.
  const double moved = is_whole ? 0 : (way.dsp ? 2 : 4) * (1 - 1 / static_cast<double>(way.ulysses));
  EXPECT_NEAR(static_cast<double>(bytes) / static_cast<double>(activation), moved, 0.03 * moved);
}

std::vector<Ways> all_ways() {
  std::vector<Ways> ways;
  for (const auto axis : {parallel::GridAxis::kRows, parallel::GridAxis::kFrames}) {
    for (const auto over : {Over::kSpatial, Over::kTemporal}) {
      for (const bool dsp : {false, true}) {
        for (const auto& [ulysses, gather, ring, patches] :
             {std::array{2, 1, 1, 1}, std::array{4, 1, 1, 1}, std::array{3, 1, 2, 1}, std::array{3, 2, 1, 1},
              std::array{2, 1, 1, 2}, std::array{1, 2, 2, 1}, std::array{1, 2, 1, 2}}) {
          if (dsp && ulysses == 1) continue;
          ways.push_back({axis, axis, ulysses, gather, ring, patches, dsp, over});
          if (patches == 1) continue;
          const bool rows = axis == parallel::GridAxis::kRows;
          const auto other = rows ? parallel::GridAxis::kFrames : parallel::GridAxis::kRows;
          ways.push_back({axis, other, ulysses, gather, ring, patches, dsp, over});
        }
      }
    }
  }
  return ways;
}

INSTANTIATE_TEST_SUITE_P(All, AxialAttentionOnRanks, ::testing::ValuesIn(all_ways()), [](const auto& info) {
  const Ways& way = info.param;
  return fmt::format(
      "{}_{}_{}Ulysses{}Gather{}Ring{}Patches{}{}", way.over == Over::kSpatial ? "Spatial" : "Temporal",
      way.axis == parallel::GridAxis::kRows ? "Rows" : "Frames", way.dsp ? "Dsp" : "", way.ulysses,
      way.gather, way.ring, way.patches, way.patch_axis == way.axis ? "" : "OfTheOtherAxis");
});

}  // namespace
}  // namespace tessera::nn
