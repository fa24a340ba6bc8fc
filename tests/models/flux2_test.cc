#include "models/flux2.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/denoiser_golden.h"
#include "weights/checkpoint.h"

namespace tessera::models {
namespace {

Flux2Config flux2_config(const std::string& json) {
  return Flux2Config(JsonConfig(parse_json(json, "config.json"), "config.json"));
}

// The prediction for the latents and prompts of a golden.
at::Tensor flux2_prediction(const Flux2Transformer& model, const std::map<std::string, at::Tensor>& golden,
                            double timestep, int64_t blocks) {
  const at::Tensor z = golden.at("latents"), texts = golden.at("prompts");
  const std::vector<Conditioning> prompts = {
      {{kTokens, texts[0]}}, {{kTokens, texts[1]}}, {{kTokens, texts[2]}}};
  const LatentShape latent_shape{z.size(2), z.size(3), 16};
  const std::vector<int64_t> prompt_of = {0, 1, 2};
  const std::map<std::string, at::Tensor> scales = {{kGuidanceScale, golden.at("scales").to(at::kDouble)}};
  nn::Tokens tokens({1, z.size(2), z.size(3)});
  const auto forward = model.start({prompts, prompt_of, latent_shape, tokens, scales});
  forward->begin({timestep, at::tensor({timestep}, at::kFloat)});
  Hidden hidden = forward->embed(z);
  for (int64_t i = 0; i < blocks; ++i) {
    EXPECT_EQ(hidden.size(), forward->streams(i).size());
    forward->block(i, hidden);
  }
  return forward->head(hidden);
}

class Flux2Golden : public DenoiserGolden {
 protected:
  at::Tensor run(at::ScalarType dtype, double timestep) override {
    const Flux2Config config(JsonConfig::read(golden_folder(GetParam()) / "config.json"));
    weights::Checkpoint checkpoint(golden_folder(GetParam()), weights::Library::kDiffusers);
    const Flux2Transformer model(weights::Scope(checkpoint, {.dtype = dtype}), config,
                                 LocalBlocks(config.blocks()));
    return flux2_prediction(model, golden_, timestep, config.blocks());
  }
};

TEST_P(Flux2Golden, EqualsDiffusersInFp32) {
  expect_diffusers_output_in_fp32();
}

TEST_P(Flux2Golden, IsAsNearTheTruthInBf16AsDiffusers) {
  expect_to_be_as_near_the_truth_in_bf16();
}

INSTANTIATE_TEST_SUITE_P(Models, Flux2Golden, ::testing::Values("flux2", "flux2-guidance"));

// Numbers that fp16 cannot hold become its largest one.
TEST(Flux2, IsFiniteInFp16) {
  auto golden = read_golden("flux2/golden/golden.safetensors");
  for (const char* large : {"transformer_blocks.1.ff_context.linear_out.weight",
                            "single_transformer_blocks.0.attn.to_out.weight"}) {
    auto weights = read_golden("flux2/diffusion_pytorch_model.safetensors");
    weights.at(large) = weights.at(large).sign() * 3e4;
    const CheckpointFixture file(weights);
    const Flux2Config config(JsonConfig::read(golden_folder("flux2") / "config.json"));
    const Flux2Transformer model(file.scope(at::kHalf), config, LocalBlocks(config.blocks()));
    const at::Tensor out = flux2_prediction(model, golden, 417.5, config.blocks());
    EXPECT_TRUE(at::isfinite(out).all().item<bool>()) << large;
  }
}

TEST(Flux2, MuIsThatOfDiffusers) {
  const auto golden = read_golden("flux2/golden/golden.safetensors");
  for (const auto& [tokens, steps] :
       {std::pair(1, 1), {28, 4}, {4096, 50}, {4300, 4}, {4301, 4}, {16384, 28}}) {
    EXPECT_DOUBLE_EQ(flux2_mu(tokens, steps),
                     golden.at(fmt::format("mu.{}.{}", tokens, steps)).item<double>());
  }
}

TEST(Flux2Config, RefusesWhatItCannotRun) {
  const auto refusal = [](const std::string& json) {
    try {
      flux2_config(json);
      return std::string("accepted");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
      return std::string(error.what());
    }
  };
  for (const char* json : {"{}", R"({"out_channels": null})", R"({"out_channels": 128, "patch_size": 1})",
                           R"({"axes_dims_rope": [128]})", R"({"axes_dims_rope": [32.0, 48, 48]})",
                           R"({"num_layers": 0})", R"({"num_single_layers": 0})"})
    EXPECT_EQ(refusal(json), "accepted");
  for (const auto& [json, part] :
       {std::pair(R"({"patch_size": 2})", "'patch_size' is 2: the model would predict more channels"),
        {R"({"out_channels": 64})", "'out_channels' must be 128, as in_channels, or null"},
        {R"({"axes_dims_rope": [32, 32, 32, 16, 16]})",
         "'axes_dims_rope' must be one to four even numbers with the sum 128"},
        {R"({"axes_dims_rope": []})", "'axes_dims_rope' must be one to four even numbers"},
        {R"({"axes_dims_rope": [31, 33, 32, 32]})", "'axes_dims_rope' must be one to four even numbers"},
        {R"({"axes_dims_rope": [32, 32, 32, 30]})", "'axes_dims_rope' must be one to four even numbers"},
        {R"({"attention_head_dim": 64})", "with the sum 64 (attention_head_dim)"},
        {R"({"mlp_ratio": 0})", "'mlp_ratio' must be such that"},
        {R"({"mlp_ratio": 1e30})", "'mlp_ratio' must be such that"},
        {R"({"mlp_ratio": NaN})", "'mlp_ratio' must be such that"},
        {R"({"rope_theta": 0})", "'rope_theta' must be a positive number"},
        {R"({"num_layers": -1})", "'num_layers' must be from 0"},
        {R"({"num_layers": 0, "num_single_layers": 0})", "'num_single_layers' must be at least 1 without"},
        {R"({"eps": null})", "'eps'"}})
    EXPECT_NE(refusal(json).find(part), std::string::npos) << refusal(json);
}

}  // namespace
}  // namespace tessera::models
