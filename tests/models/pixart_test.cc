#include "models/pixart.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/support/denoiser_golden.h"
#include "weights/checkpoint.h"

namespace tessera::models {
namespace {

PixArtConfig config_of(const std::string& name) {
  return PixArtConfig(JsonConfig::read(golden_folder(name) / "config.json"));
}

std::unique_ptr<PixArtTransformer> load(const std::string& name, at::ScalarType dtype) {
  weights::Checkpoint checkpoint(golden_folder(name), weights::Library::kDiffusers);
  const PixArtConfig config = config_of(name);
  return std::make_unique<PixArtTransformer>(weights::Scope(checkpoint, {.dtype = dtype}), config,
                                             LocalBlocks(config.num_layers));
}

constexpr int64_t kScaleFactor = 8;  // of the goldens

class PixArtGolden : public DenoiserGolden {
 protected:
  at::Tensor run(at::ScalarType dtype, double timestep) override {
    const auto model = load(GetParam(), dtype);
    const at::Tensor z = golden_.at("latents");
    const std::vector<Conditioning> prompts = {{{kTokens, golden_.at("prompt.0")}},
                                               {{kTokens, golden_.at("prompt.1")}}};
    const PixArtConfig config = config_of(GetParam());
    const LatentShape latent_shape{z.size(2), z.size(3), kScaleFactor};
    const std::vector<int64_t> prompt_of = {0, 1, 1};
    nn::Tokens tokens({1, z.size(2) / config.patch_size, z.size(3) / config.patch_size});
    const auto forward = model->start({prompts, prompt_of, latent_shape, tokens});
    forward->begin({timestep, at::tensor({timestep}, at::kFloat)});
    Hidden hidden = forward->embed(z);
    for (int64_t i = 0; i < config.num_layers; ++i) forward->block(i, hidden);
    return forward->head(hidden);
  }
};

TEST_P(PixArtGolden, EqualsDiffusersInFp32) {
  expect_diffusers_output_in_fp32();
}

TEST_P(PixArtGolden, IsAsNearTheTruthInBf16AsDiffusers) {
  expect_to_be_as_near_the_truth_in_bf16();
}

INSTANTIATE_TEST_SUITE_P(Models, PixArtGolden,
                         ::testing::Values("pixart-alpha", "pixart-sigma", "pixart-plain"));

TEST(PixArt, SizeConditionsAreInPixels) {
  const auto model = load("pixart-alpha", at::kFloat);
  const auto size_embedding = [&](int64_t height, int64_t width, int64_t scale_factor) {
    return model->size_embedding({height, width, scale_factor});
  };
  EXPECT_TRUE(at::equal(size_embedding(6, 10, 16), size_embedding(12, 20, 8)));
  EXPECT_FALSE(at::equal(size_embedding(6, 10, 16), size_embedding(6, 10, 8)));
}

TEST(PixArtConfig, RefusesWhatItCannotRun) {
  const auto refusal = [](const std::string& json) {
    try {
      const PixArtConfig config(JsonConfig(parse_json(json, "config.json"), "config.json"));
      return std::string("accepted");
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(refusal("{}"), "accepted");
  EXPECT_NE(refusal(R"({"norm_type":"layer_norm"})").find("'norm_type' must be \"ada_norm_single\""),
            std::string::npos);
  EXPECT_NE(refusal(R"({"num_layers":0})").find("'num_layers'"), std::string::npos);
  for (const char* key : {"norm_type", "activation_fn", "cross_attention_dim", "out_channels", "norm_eps"})
    EXPECT_NE(refusal(fmt::format(R"({{"{}":null}})", key)).find("got null"), std::string::npos) << key;
  EXPECT_NE(refusal(R"({"num_layers":"x"})").find("an integer"), std::string::npos);
  EXPECT_NE(refusal(R"({"out_channels":2})").find("at least in_channels"), std::string::npos);
  EXPECT_NE(refusal(R"({"caption_channels":8,"cross_attention_dim":8})").find("1152"), std::string::npos);
}

TEST(PixArtConfig, ReadsNullAsDiffusersDoes) {
  const char* const nulls = R"({"attention_bias": null, "attention_type": null, "caption_channels": null,
                                "interpolation_scale": null, "use_additional_conditions": null,
                                "norm_elementwise_affine": null, "sample_size": 128})";
  const PixArtConfig config(JsonConfig(parse_json(nulls, "config.json"), "config.json"));
  EXPECT_FALSE(config.attention_bias);
  EXPECT_EQ(config.caption_channels, 0);
  EXPECT_EQ(config.interpolation_scale, 2);
  EXPECT_TRUE(config.use_additional_conditions);  // by the size
}

// The sizes of diffusers' ASPECT_RATIO_256_BIN, and those that ASPECT_RATIO_2048_BIN has beside eight times
// as much.
TEST(PixArtBins, AreThoseOfDiffusers) {
  using Sizes = std::vector<std::pair<int64_t, int64_t>>;
  const Sizes at_256 = {{128, 512}, {128, 464}, {144, 448}, {144, 432}, {144, 416}, {160, 400}, {160, 384},
                        {176, 368}, {176, 352}, {176, 336}, {192, 336}, {192, 320}, {208, 304}, {208, 288},
                        {224, 288}, {224, 272}, {240, 272}, {240, 256}, {256, 256}, {256, 240}, {272, 240},
                        {272, 224}, {288, 224}, {288, 208}, {304, 208}, {320, 192}, {336, 192}, {352, 176},
                        {368, 176}, {384, 160}, {400, 160}, {432, 144}, {512, 128}};
  const Sizes at_2048 = {{1024, 3968}, {1024, 3840}, {3328, 1152}, {3584, 1152},
                         {3712, 1024}, {3840, 1024}, {3968, 1024}};
  for (const auto& [height, width] : at_256) {
    for (const int64_t factor : {1, 2, 4, 8})
      EXPECT_EQ(pixart_bin_resolution(height, width, 32 * factor),
                std::pair(height * factor, width * factor));
  }
  for (const auto& [height, width] : at_2048)
    EXPECT_EQ(pixart_bin_resolution(height, width, 256), std::pair(height, width));
}

TEST(PixArtBins, MapToTheNearestAspectRatio) {
  EXPECT_EQ(pixart_bin_resolution(1024, 1024, 128), (std::pair<int64_t, int64_t>(1024, 1024)));
  EXPECT_EQ(pixart_bin_resolution(500, 500, 128), (std::pair<int64_t, int64_t>(1024, 1024)));
  EXPECT_EQ(pixart_bin_resolution(100, 400, 64), (std::pair<int64_t, int64_t>(256, 1024)));
  EXPECT_EQ(pixart_bin_resolution(720, 1280, 128), (std::pair<int64_t, int64_t>(768, 1344)));
  EXPECT_EQ(pixart_bin_resolution(4000, 1000, 32), (std::pair<int64_t, int64_t>(512, 128)));
  EXPECT_EQ(pixart_bin_resolution(1024, 3968, 256), (std::pair<int64_t, int64_t>(1024, 3968)));
  // Halfway between two aspect ratios, the wider one is chosen.
  EXPECT_EQ(pixart_bin_resolution(704, 256, 128), (std::pair<int64_t, int64_t>(1600, 640)));
  EXPECT_EQ(pixart_bin_resolution(896, 256, 128), (std::pair<int64_t, int64_t>(1728, 576)));
  EXPECT_EQ(pixart_bin_resolution(104, 200, 16), std::nullopt);
}

}  // namespace
}  // namespace tessera::models
