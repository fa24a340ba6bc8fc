#include "weights/memory_counter.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include "core/device.h"
#include "nn/causal_conv.h"
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

// A trace counts what a run on the CPU holds: transformed weights are larger than those of the file.
TEST(MemoryCounter, CountsOfShapesWhatTheCpuTakes) {
  const CheckpointFixture fixture({{"linear.weight", at::randn({256, 128})},
                                   {"linear.bias", at::randn({256})},
                                   {"conv.weight", at::randn({64, 64, 3, 3})},
                                   {"conv.bias", at::randn({64})},
                                   {"few.weight", at::randn({48, 64, 3, 3})},
                                   {"few.bias", at::randn({48})},
                                   {"frames.weight", at::randn({64, 64, 3, 3, 3})},
                                   {"frames.bias", at::randn({64})}});
  const MetaStandsFor cpu(at::kCPU);
  const auto bytes_of = [&](const auto& make, at::ScalarType dtype, at::Device device) {
    const MemoryCounter memory;
    const auto layer = make(fixture.scope(dtype, device));
    return static_cast<double>(memory.bytes());
  };
  const auto expect_same = [&](const auto& make, const char* name) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      EXPECT_NEAR(bytes_of(make, dtype, at::kMeta), bytes_of(make, dtype, at::kCPU), kSlack)
          << name << " in " << c10::toString(dtype);
    }
  };
  expect_same([](const Scope& scope) { return ops::Linear(scope / "linear", 128, 256); }, "linear");
  expect_same([](const Scope& scope) { return ops::Conv2d(scope / "conv", 64, 64, 3, 1, 1); }, "3 x 3");
  expect_same([](const Scope& scope) { return ops::Conv2d(scope / "conv", 64, 64, 3, 2, 1); }, "of stride 2");
  expect_same([](const Scope& scope) { return ops::Conv2d(scope / "few", 64, 48, 3, 1, 1); },
              "to 48 channels");
  expect_same([](const Scope& scope) { return ops::Upsample2d(scope, 64); }, "upsampling");
  expect_same([](const Scope& scope) { return nn::CausalConv3d(scope / "frames", 64, 64, {}); }, "frames");
}

}  // namespace
}  // namespace tessera::weights
