#include "parallel/ranks.h"

#include <gtest/gtest.h>

#include <map>

namespace tessera::parallel {
namespace {

// A pipeline of two stages, each of two tensor ranks; the ranks of Ulysses and of guidance divide no weights.
TEST(Ranks, OfEqualPlacesHoldEqualWeights) {
  Layout layout{.stage_blocks = {1, 1}};
  for (const Axis axis : {Axis::kPipeline, Axis::kTensorInner, Axis::kUlysses, Axis::kCfg})
    layout.sizes[axis] = 2;
  std::map<DenoiserPlace, int64_t> ranks;
  for (int64_t rank = 0; rank < 16; ++rank) ++ranks[denoiser_place(Ranks(rank, layout))];
  EXPECT_EQ(ranks, (std::map<DenoiserPlace, int64_t>{
                       {{0, 0, 0}, 4}, {{0, 1, 0}, 4}, {{1, 0, 0}, 4}, {{1, 1, 0}, 4}}));
}

}  // namespace
}  // namespace tessera::parallel
