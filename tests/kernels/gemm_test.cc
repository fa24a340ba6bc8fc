#include "kernels/gemm.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

namespace tessera::kernels {
namespace {

struct Product {
  int64_t rows, in, out;
};

// Of processors with AVX2, which all that these kernels run on have.
class StoredWeights : public ::testing::TestWithParam<std::tuple<at::ScalarType, Product>> {
 protected:
  void SetUp() override {
    if (cpu_isa() < Isa::kAvx2) GTEST_SKIP() << "needs AVX2";
    const auto& [dtype, c] = GetParam();
    x_ = at::randn({c.rows, c.in}).to(dtype);
    weight_ = at::randn({c.out, c.in}).to(dtype);
    bias_ = at::randn({c.out}).to(dtype);
  }

  at::Tensor x_, weight_, bias_;
};

TEST_P(StoredWeights, AreMultipliedAsPackedOnes) {
  const at::Tensor packed = gemm_pack(weight_);
  for (const Activation activation : {Activation::kNone, Activation::kSilu, Activation::kGelu}) {
    for (const at::Tensor& bias : {bias_, at::Tensor()}) {
      for (const int threads : {1, 2, 3}) {
        at::set_num_threads(threads);
        const at::Tensor expected = gemm_linear(x_, packed, bias, activation);
        const at::Tensor y = gemm_linear_as_stored(x_, weight_, bias, activation);
        at::set_num_threads(1);
        EXPECT_TRUE(at::equal(y, expected)) << static_cast<int>(activation) << " " << threads;
      }
    }
  }
}

// Sums are fp32, so a result is off by half of its last place, and by what the order of the sum leaves.
TEST_P(StoredWeights, AreRoundedOnce) {
  const at::Tensor y = gemm_linear_as_stored(x_, weight_, bias_, Activation::kNone).to(at::kDouble);
  const at::Tensor x = x_.to(at::kDouble), weight = weight_.to(at::kDouble), bias = bias_.to(at::kDouble);
  const at::Tensor expected = at::linear(x, weight, bias);
  const at::Tensor size = at::linear(x.abs(), weight.abs(), bias.abs());
  const auto dtype = std::get<0>(GetParam());
  const double half = dtype == at::kFloat ? 0x1p-24 : dtype == at::kHalf ? 0x1p-11 : 0x1p-8;
  EXPECT_TRUE(((y - expected).abs() <= half * expected.abs() + 2e-6 * size).all().item<bool>());
}

// Columns that fill no panel, inputs that fill no vector, line or run, and several blocks of rows.
INSTANTIATE_TEST_SUITE_P(Shapes, StoredWeights,
                         ::testing::Combine(::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                                            ::testing::Values(Product{1, 1, 1}, Product{5, 7, 8},
                                                              Product{6, 8, 9}, Product{7, 33, 16},
                                                              Product{13, 39, 17}, Product{2, 384, 31},
                                                              Product{125, 385, 33}, Product{500, 1000, 40},
                                                              Product{1, 800, 300})));

TEST(StoredWeights, MayBeStrided) {
  if (cpu_isa() < Isa::kAvx2) GTEST_SKIP() << "needs AVX2";
  const at::Tensor x = at::randn({3, 20}).to(at::kBFloat16), all = at::randn({20, 40}).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(gemm_linear_as_stored(x, all.t(), {}, Activation::kNone),
                        gemm_linear(x, gemm_pack(all.t()), {}, Activation::kNone)));
}

}  // namespace
}  // namespace tessera::kernels
