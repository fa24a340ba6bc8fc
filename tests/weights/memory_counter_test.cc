#include "weights/memory_counter.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include "ops/conv.h"
#include "ops/linear.h"
#include "tests/support/checkpoint_fixture.h"

namespace tessera::weights {
namespace {

constexpr uint64_t kSlack = 8192;  // small tensors beside the weights, and padding

TEST(MemoryCounter, CountsViewsAndCopiesAsLongAsTheyLive) {
  const CheckpointFixture fixture({{"w", at::randn({64, 32})}});
  constexpr uint64_t kBytes = sizeof(float) * 64 * 32;
  const MemoryCounter memory;
  at::Tensor view = fixture.scope().tensor("w", {64, 32});
  EXPECT_EQ(memory.bytes(), kBytes);
  const at::Tensor half = fixture.scope(at::kBFloat16).tensor("w", {64, 32});
  EXPECT_EQ(memory.bytes(), kBytes + kBytes / 2);
  const at::Tensor rows = fixture.scope().tensor("w", {64, 32}, Slice{0, 8, 16});
  EXPECT_EQ(memory.bytes(), kBytes + kBytes / 2 + kBytes / 4);
  view.reset();
  EXPECT_EQ(memory.bytes(), kBytes / 2 + kBytes / 4);
  const at::Tensor table = fixture.scope().stored("w", {64, 32});  // only some rows of it are looked up
  EXPECT_EQ(memory.bytes(), kBytes / 2 + kBytes / 4);
}

TEST(MemoryCounter, CountsTheLayoutOfTheLayers) {
  const CheckpointFixture fixture({{"linear.weight", at::randn({256, 128})},
                                   {"linear.bias", at::randn({256})},
                                   {"conv.weight", at::randn({64, 64, 3, 3})},
                                   {"conv.bias", at::randn({64})}});
  {
    const MemoryCounter memory;
    const ops::Linear linear(fixture.scope() / "linear", 128, 256);
    EXPECT_NEAR(static_cast<double>(memory.bytes()), 257.0 * 128 * sizeof(float), kSlack);
  }
  {
    const MemoryCounter memory;
    const ops::Upsample2d upsample(fixture.scope(), 64);
    const int taps = upsample.winograd ? 49 : 16;  // or four 2x2 kernels for one 3x3 kernel
    EXPECT_NEAR(static_cast<double>(memory.bytes()), 64.0 * 64 * taps * sizeof(float), kSlack);
  }
  const MemoryCounter memory;
  const ops::Conv2d conv(fixture.scope() / "conv", 64, 64, 3, 1, 1);
  const int taps = conv.winograd ? 16 : 9;
  EXPECT_NEAR(static_cast<double>(memory.bytes()), 64.0 * 64 * taps * sizeof(float), kSlack);
}

}  // namespace
}  // namespace tessera::weights
