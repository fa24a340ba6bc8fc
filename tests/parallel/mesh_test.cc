#include "parallel/mesh.h"

#include <gtest/gtest.h>

#include <set>

namespace tessera::parallel {
namespace {

using Groups = std::vector<std::vector<int64_t>>;

Groups groups(const Mesh& mesh, Axis axis) {
  return mesh.groups(std::array{axis});
}

// The example of xDiT's documentation has dp 2, cfg 2, pp 2 and sp 2.
TEST(Mesh, SixteenRanks) {
  PerAxis sizes(1);
  sizes[Axis::kData] = sizes[Axis::kCfg] = sizes[Axis::kPipeline] = sizes[Axis::kUlysses] = 2;
  const Mesh mesh(sizes);
  EXPECT_EQ(mesh.world_size(), 16);
  EXPECT_EQ(mesh.groups(kSequenceAxes),
            (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 15}}));
  EXPECT_EQ(groups(mesh, Axis::kPipeline),
            (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}}));
  EXPECT_EQ(groups(mesh, Axis::kCfg),
            (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}, {8, 12}, {9, 13}, {10, 14}, {11, 15}}));
  EXPECT_EQ(groups(mesh, Axis::kData),
            (Groups{{0, 8}, {1, 9}, {2, 10}, {3, 11}, {4, 12}, {5, 13}, {6, 14}, {7, 15}}));
  EXPECT_EQ(mesh.groups(kReplicaAxes), (Groups{{0, 1, 2, 3, 4, 5, 6, 7}, {8, 9, 10, 11, 12, 13, 14, 15}}));
}

TEST(Mesh, TensorRanksAreNeighboursAndUlyssesIsInsideGatherInsideRing) {
  PerAxis sizes(1);
  sizes[Axis::kTensorInner] = 2;
  sizes[Axis::kUlysses] = 3;
  sizes[Axis::kGather] = 2;
  sizes[Axis::kRing] = 2;
  const Mesh mesh(sizes);
  EXPECT_EQ(mesh.group(0, kTensorAxes), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(mesh.group(0, std::array{Axis::kUlysses}), (std::vector<int64_t>{0, 2, 4}));
  EXPECT_EQ(mesh.group(0, std::array{Axis::kGather}), (std::vector<int64_t>{0, 6}));
  EXPECT_EQ(mesh.group(0, std::array{Axis::kRing}), (std::vector<int64_t>{0, 12}));
  EXPECT_EQ(mesh.group(3, kSequenceAxes), (std::vector<int64_t>{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23}));
}

TEST(Mesh, EveryAxisPartsTheWorld) {
  PerAxis sizes(1);
  int64_t size = 1;
  for (const Axis axis : kAllAxes) sizes[axis] = size++ % 3 + 1;
  const Mesh mesh(sizes);
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank)
    EXPECT_EQ(mesh.rank_at(mesh.coordinates(rank)), rank);
  for (const Axis axis : kAllAxes) {
    std::set<int64_t> seen;
    for (const std::vector<int64_t>& ranks : groups(mesh, axis)) {
      EXPECT_EQ(static_cast<int64_t>(ranks.size()), sizes[axis]);
      for (size_t i = 0; i < ranks.size(); ++i) {
        EXPECT_EQ(mesh.coordinates(ranks[i])[axis], static_cast<int64_t>(i));
        EXPECT_TRUE(seen.insert(ranks[i]).second);
      }
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), mesh.world_size());
  }
}

}  // namespace
}  // namespace tessera::parallel
