// The kernels that layers take on the processor at hand, in each dtype. `make test` runs this without a cap
// of the instruction set and under caps, so that a processor with the newest instructions sees all rows but
// the first.
#include "kernels/choices.h"

#include <gtest/gtest.h>

#include "kernels/attention_kernels.h"
#include "kernels/tile_gemm.h"
#include "kernels/winograd.h"
#include "ops/linear.h"

namespace tessera::kernels {
namespace {

struct Expected {
  LinearKernel fp32, bf16, fp16;
  bool attention_fp32, attention_bf16;
  bool winograd_fp32, winograd_bf16;
};

Expected expected_kernels() {
  switch (cpu_isa()) {
    case Isa::kBaseline:
      return {kOneDnn, kAten, kAten, false, false, false, false};
    case Isa::kAvx2:  // does not multiply bf16: own products read it, Winograd's have tiles in fp32
      return {kOwn, kOwn, kOwn, true, false, true, true};
    case Isa::kAvx512:
      return {kOneDnn, kOwn, kOwn, true, false, true, true};
    case Isa::kAvx512Bf16:
      return {kOneDnn, kOneDnn, kOwn, true, true, true, true};
    case Isa::kAmx:
      return {kOneDnn, tile_gemm_runs() ? kTiles : kOneDnn, kOwn, true, true, true, false};
  }
  return {};
}

TEST(Choices, LayersTakeTheFastestKernelOfTheirDtype) {
  const Expected expected = expected_kernels();
  const auto linear = [](at::ScalarType dtype, ops::Packing packing = ops::Packing::kForSpeed) {
    return ops::Linear(at::zeros({64, 64}, dtype), at::Tensor(), packing).kernel;
  };
  EXPECT_EQ(linear(at::kFloat), expected.fp32);
  EXPECT_EQ(linear(at::kBFloat16), expected.bf16);
  EXPECT_EQ(linear(at::kHalf), expected.fp16);
  EXPECT_EQ(linear(at::kDouble), kAten);
  EXPECT_EQ(linear(at::kFloat, ops::Packing::kAsStored), kAten);
  EXPECT_EQ(ops::Linear(at::zeros({0, 64}), at::Tensor()).kernel, kAten);
  EXPECT_EQ(attention_kernels_run(at::kFloat), expected.attention_fp32);
  EXPECT_EQ(attention_kernels_run(at::kBFloat16), expected.attention_bf16);
  EXPECT_FALSE(attention_kernels_run(at::kHalf));
}

// Minimal filtering takes multiples of 32 channels, and pays off from 64.
TEST(Choices, ConvolutionsOfManyChannelsAreFiltered) {
  const Expected expected = expected_kernels();
  EXPECT_EQ(winograd_is_faster(64, 64, at::kFloat, at::kCPU), expected.winograd_fp32);
  EXPECT_EQ(winograd_is_faster(96, 128, at::kFloat, at::kCPU), expected.winograd_fp32);
  EXPECT_EQ(winograd_is_faster(64, 64, at::kBFloat16, at::kCPU), expected.winograd_bf16);
  EXPECT_FALSE(winograd_is_faster(64, 64, at::kHalf, at::kCPU));
  EXPECT_FALSE(winograd_is_faster(32, 64, at::kFloat, at::kCPU));
  EXPECT_FALSE(winograd_is_faster(64, 32, at::kFloat, at::kCPU));
  EXPECT_FALSE(winograd_is_faster(80, 64, at::kFloat, at::kCPU));
  EXPECT_FALSE(winograd_is_faster(64, 80, at::kFloat, at::kCPU));
  EXPECT_FALSE(winograd_is_faster(64, 64, at::kFloat, at::kCUDA));
}

}  // namespace
}  // namespace tessera::kernels
