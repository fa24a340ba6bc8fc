#include "core/text.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Counted, HasTheNumberOfTheNoun) {
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(2, "latent frame"), "2 latent frames");
  EXPECT_EQ(counted(1, "micro-batch"), "1 micro-batch");
  EXPECT_EQ(counted(3, "micro-batch"), "3 micro-batches");
}

}  // namespace
}  // namespace tessera
