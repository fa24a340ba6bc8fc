#include "models/z_image.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/support/denoiser_golden.h"
#include "weights/checkpoint.h"

namespace tessera::models {
namespace {

ZImageConfig z_image_config(const std::string& name) {
  return ZImageConfig(JsonConfig::read(golden_folder(name) / "config.json"));
}

class ZImageGolden : public DenoiserGolden {
 protected:
  at::Tensor run(at::ScalarType dtype, double timestep) override {
    const ZImageConfig config = z_image_config(GetParam());
    weights::Checkpoint checkpoint(golden_folder(GetParam()), weights::Library::kDiffusers);
    const ZImageTransformer model(weights::Scope(checkpoint, {.dtype = dtype}), config,
                                  LocalBlocks(config.blocks()));
    const at::Tensor z = golden_.at("latents");
    std::vector<Conditioning> prompts;
    for (const char* name : {"prompt.0", "prompt.1", "prompt.2"})
      prompts.push_back({{kTokens, golden_.at(name)}});
    const LatentShape latent_shape{z.size(2), z.size(3), 8};
    const std::vector<int64_t> prompt_of = {0, 1, 2};
    nn::Tokens tokens({1, z.size(2) / 2, z.size(3) / 2});
    const auto forward = model.start({prompts, prompt_of, latent_shape, tokens});
    forward->begin({timestep, at::tensor({timestep}, at::kFloat)});
    Hidden hidden = forward->embed(z);
    for (int64_t i = 0; i < config.blocks(); ++i) {
      EXPECT_EQ(hidden.size(), forward->streams(i).size());
      forward->block(i, hidden);
    }
    return forward->head(hidden);
  }
};

TEST_P(ZImageGolden, EqualsDiffusersInFp32) {
  expect_diffusers_output_in_fp32();
}

TEST_P(ZImageGolden, IsAsNearTheTruthInBf16AsDiffusers) {
  expect_to_be_as_near_the_truth_in_bf16();
}

INSTANTIATE_TEST_SUITE_P(Models, ZImageGolden, ::testing::Values("z-image", "z-image-plain"));

TEST(ZImageConfig, RefusesWhatItCannotRun) {
  const auto refusal = [](const std::string& json) {
    try {
      const ZImageConfig config(JsonConfig(parse_json(json, "config.json"), "config.json"));
      return std::string("accepted");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
      return std::string(error.what());
    }
  };
  EXPECT_EQ(refusal("{}"), "accepted");
  // diffusers makes as many heads of keys as of queries, and always takes the patches "2-1".
  EXPECT_EQ(refusal(R"({"n_kv_heads": 8, "siglip_feat_dim": null})"), "accepted");
  EXPECT_EQ(refusal(R"({"all_patch_size": [4, 2], "all_f_patch_size": [1, 1]})"), "accepted");
  EXPECT_EQ(refusal(R"({"n_layers": 0})"), "accepted");
  for (const auto& [json, part] :
       {std::pair(R"({"siglip_feat_dim": 1152})",
                  "'siglip_feat_dim' is 1152: pictures as a part of the prompt"),
        {R"({"all_patch_size": [4]})", "'all_patch_size' is [4]: only patches of 2 x 2 latents"},
        {R"({"all_f_patch_size": [2]})", "only patches of 2 x 2 latents and 1 frame"},
        {R"({"all_patch_size": [2, 4]})", "'all_f_patch_size' must be 2 numbers"},
        {R"({"axes_dims": [32, 48]})", "'axes_dims' must be three even numbers with the sum 128"},
        {R"({"axes_dims": [31, 49, 48]})", "'axes_dims' must be three even numbers"},
        {R"({"axes_lens": [32, 48]})", "'axes_lens' must be three positive numbers"},
        {R"({"n_heads": 7})", "'n_heads' must be a divisor of dim (3840)"},
        {R"({"n_refiner_layers": -1})", "'n_refiner_layers' must be from 0"},
        {R"({"n_layers": -1})", "'n_layers' must be from 0"},
        {R"({"n_layers": 0, "n_refiner_layers": 0})", "'n_layers' must be at least 1 without refiners"},
        {R"({"rope_theta": 0})", "'rope_theta' must be a positive number"},
        {R"({"norm_eps": null})", "'norm_eps'"}})
    EXPECT_NE(refusal(json).find(part), std::string::npos) << refusal(json);
}

}  // namespace
}  // namespace tessera::models
