#include <gtest/gtest.h>

#include "core/error.h"
#include "models/autoencoder_kl.h"
#include "models/family.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/golden.h"

namespace tessera::models {
namespace {

TEST(Families, AnUnknownClassNamesTheKnownOnes) {
  try {
    find_family("FluxPipeline", "model_index.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    EXPECT_NE(std::string(error.what()).find("PixArtSigmaPipeline"), std::string::npos) << error.what();
  }
}

// diffusers makes the class that model_index.json names, whatever the part's own files say.
TEST(Families, PartsAreOfTheClassesThatTheIndexNames) {
  const JsonConfig good = JsonConfig::read(golden_folder("tiny-sdxl") / "model_index.json");
  const Family& xl = find_family("StableDiffusionXLPipeline", "");
  const auto refusal = [&](const char* part, const Json& named) {
    Json index = good.values();
    index[part] = named;
    try {
      check_classes(JsonConfig(index, "model_index.json"), xl);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refusal("_name_or_path", "x"), "accepted");
  EXPECT_EQ(refusal("text_encoder", {"transformers", "CLIPTextModelWithProjection"}), "accepted");
  EXPECT_EQ(refusal("tokenizer_2", {"transformers", "CLIPTokenizerFast"}), "accepted");
  EXPECT_EQ(refusal("image_encoder", {"transformers", "Any"}), "accepted");
  EXPECT_EQ(
      refusal("vae", {"diffusers", "ConsistencyDecoderVAE"}),
      "[model_index.json] 'vae' is [\"diffusers\",\"ConsistencyDecoderVAE\"]: this class cannot run here; of "
      "diffusers these can: AutoencoderKL");
  for (const Json& named : {Json{"my_unet", "MyUNet"}, Json{"my_unet", "UNet2DConditionModel"}})
    EXPECT_NE(refusal("unet", named).find("'unet' is [\"my_unet\","), std::string::npos);
  EXPECT_NE(refusal("tokenizer", {"transformers", "Qwen2Tokenizer"}).find("CLIPTokenizer"),
            std::string::npos);
  for (const Json& named : {Json(), Json{nullptr, nullptr}, Json("CLIPTextModel")})
    EXPECT_NE(refusal("text_encoder", named).find("'text_encoder' must be a library and a class"),
              std::string::npos);
}

// diffusers' pipelines divide by the scaling factor and ignore the shift in the VAE's config.
TEST(Families, LatentsAreNotShifted) {
  const CheckpointFixture model({});
  std::filesystem::create_directory_symlink(golden_folder("vae-shift"), model.folder() / "vae");
  const at::Tensor z = read_golden("vae-shift/golden/golden.safetensors").at("latents");
  LoadStatistics cost;
  const auto plain = load_autoencoder_kl_decoder(model.folder() / "vae", {}, cost);
  ASSERT_NE(plain->config.shift_factor, 0);
  const at::Tensor shifted_back = z - plain->config.shift_factor * plain->config.scaling_factor;
  for (const char* name : {"PixArtAlphaPipeline", "PixArtSigmaPipeline", "StableDiffusionPipeline",
                           "StableDiffusionXLPipeline"}) {
    const auto decoder = find_family(name, "").load_decoder(model.folder(), {}, cost);
    EXPECT_LE(relative_error(decoder->decode(z), plain->decode(shifted_back)), kComponentTolerance) << name;
  }
}

}  // namespace
}  // namespace tessera::models
