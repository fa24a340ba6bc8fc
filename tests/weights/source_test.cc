#include "weights/source.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "weights/scope.h"

namespace tessera::weights {
namespace {

TEST(ShapeOnlySource, GivesWhatIsAskedForAndCountsIt) {
  ShapeOnlySource source;
  const Scope scope(source, {.dtype = at::kBFloat16, .device = at::kMeta});
  const at::Tensor whole = (scope / "layer").tensor("weight", {6, 4});
  EXPECT_TRUE(whole.is_meta());
  EXPECT_EQ(whole.sizes(), (at::IntArrayRef{6, 4}));
  EXPECT_EQ(whole.scalar_type(), at::kBFloat16);
  const at::Tensor part = scope.tensor("weight", {6, 4}, {Slice{0, 2, 3}, Slice{1, 0, 1}});
  EXPECT_EQ(part.sizes(), (at::IntArrayRef{3, 1}));
  EXPECT_EQ(source.bytes_held(), (6U * 4 + 3) * sizeof(c10::BFloat16));
  EXPECT_FALSE(scope.has("weight"));
  EXPECT_THROW(scope.tensor("weight", {6, 4}, Slice{0, 5, 2}), InternalError);
}

TEST(Scope, LayersWithFewerUnitsThanRanksAreHeldWhole) {
  ShapeOnlySource source;
  const Scope scope(source, {.groups = {.inner = {.rank = 1, .size = 4}, .outer = {}}});
  EXPECT_EQ(scope.split_at_most(4).groups()->size(), 4);
  EXPECT_EQ(scope.split_at_most(3).groups()->size(), 1);
}

}  // namespace
}  // namespace tessera::weights
