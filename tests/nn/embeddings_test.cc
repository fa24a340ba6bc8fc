#include "nn/embeddings.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/golden.h"

namespace tessera::nn {
namespace {

TEST(SinusoidalEmbedding, IsCosinesThenSines) {
  const at::Tensor out = sinusoidal_embedding(at::tensor({0.0, 417.5}, at::kFloat), 8);
  for (int64_t i = 0; i < 4; ++i) {
    const double frequency = std::pow(10000.0, -static_cast<double>(i) / 4);
    EXPECT_FLOAT_EQ(out[0][i].item<float>(), 1.0F);
    EXPECT_FLOAT_EQ(out[0][4 + i].item<float>(), 0.0F);
    EXPECT_NEAR(out[1][i].item<double>(), std::cos(417.5 * frequency), 5e-5);
    EXPECT_NEAR(out[1][4 + i].item<double>(), std::sin(417.5 * frequency), 5e-5);
  }
}

TEST(SinusoidalEmbedding, EndsInZeroWhereTheWidthIsOdd) {
  const at::Tensor values = at::tensor({0.0, 417.5}, at::kFloat);
  const at::Tensor out = sinusoidal_embedding(values, 9);
  EXPECT_TRUE(at::equal(out.narrow(1, 0, 8), sinusoidal_embedding(values, 8)));
  EXPECT_TRUE(at::equal(out.select(1, 8), at::zeros({2})));
}

// By the pipelines of diffusers.
TEST(GuidanceEmbedding, EqualsDiffusers) {
  const auto golden = read_golden("unet-lcm/golden/golden.safetensors");
  const at::Tensor& expected = golden.at("guidance_embedding");
  const at::Tensor out = guidance_embedding(golden.at("guidance_weight"), expected.size(1));
  EXPECT_LE((out - expected).abs().max().item<double>(), 1e-6);
}

TEST(GuidanceEmbedding, EndsInZeroWhereTheWidthIsOdd) {
  const at::Tensor weights = at::tensor({0.0, 6.5}, at::kFloat);
  const at::Tensor out = guidance_embedding(weights, 9);
  EXPECT_TRUE(at::equal(out.narrow(1, 0, 8), guidance_embedding(weights, 8)));
  EXPECT_TRUE(at::equal(out.select(1, 8), at::zeros({2})));
  EXPECT_TRUE(at::equal(guidance_embedding(weights, 1), at::zeros({2, 1})));
}

TEST(PositionEmbedding, PutsColumnsFirstAndSpansTheBaseGrid) {
  // With 2 x 3 patches over a base grid of 6, rows lie 3 apart and columns 2.
  const at::Tensor out = sincos_position_embedding(8, 2, 3, 6, 1.0).view({2, 3, 8});
  for (int64_t row = 0; row < 2; ++row) {
    for (int64_t column = 0; column < 3; ++column) {
      for (int64_t i = 0; i < 2; ++i) {
        const double frequency = std::pow(10000.0, -static_cast<double>(i) / 2);
        const at::Tensor place = out[row][column];
        EXPECT_NEAR(place[i].item<double>(), std::sin(2.0 * column * frequency), 1e-6);
        EXPECT_NEAR(place[2 + i].item<double>(), std::cos(2.0 * column * frequency), 1e-6);
        EXPECT_NEAR(place[4 + i].item<double>(), std::sin(3.0 * row * frequency), 1e-6);
        EXPECT_NEAR(place[6 + i].item<double>(), std::cos(3.0 * row * frequency), 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::nn
