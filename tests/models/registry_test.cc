#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "models/autoencoder_kl.h"
#include "models/family.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/golden.h"
#include "tests/support/temporary_folder.h"

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
      parts_of(JsonConfig(index, "model_index.json"), xl);
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
  EXPECT_NE(refusal("text_encoder", "CLIPTextModel").find("'text_encoder' must be a library and a class"),
            std::string::npos);
  for (const Json& none : {Json(), Json{nullptr, nullptr}}) {
    EXPECT_EQ(refusal("text_encoder", none), "accepted");
    EXPECT_NE(refusal("text_encoder_2", none).find("'text_encoder_2' must be a library and a class"),
              std::string::npos);
  }
}

// The file of a whole CLIP model has the options of its text model under a key.
TEST(Families, TextModelsOfWholeClipModels) {
  const TemporaryFolder temporary;
  const std::filesystem::path& folder = temporary.path();
  const std::filesystem::path clip = golden_folder("tiny-sd") / "text_encoder";
  std::filesystem::create_directory_symlink(golden_folder("tiny-sd") / "tokenizer", folder / "tokenizer");
  std::filesystem::create_directory(folder / "text_encoder");
  std::filesystem::create_symlink(clip / "model.safetensors", folder / "text_encoder" / "model.safetensors");
  const Family& family = find_family("StableDiffusionPipeline", "");
  LoadStatistics cost;
  const auto plain = family.text_encoders.front().load(golden_folder("tiny-sd"), {}, cost);
  Json options = read_json(clip / "config.json");
  const Json whole = {{"model_type", "clip"}, {"text_config", options}, {"projection_dim", 7}};
  std::ofstream(folder / "text_encoder" / "config.json") << whole;
  const auto nested = family.text_encoders.front().load(folder, {}, cost);
  EXPECT_TRUE(at::equal(nested->encode({{.text = "a square"}}, 77).front().at(kTokens),
                        plain->encode({{.text = "a square"}}, 77).front().at(kTokens)));
}

// What the text encoders of a family give for a prompt, of those that are in the folder.
Conditioning encoded(const std::string& class_name, const std::filesystem::path& folder, const Prompt& prompt,
                     const std::vector<std::string>& parts) {
  const Family& family = find_family(class_name, "");
  std::vector<Conditioning> by_encoder;
  for (const TextEncoderPart& each : family.text_encoders) {
    LoadStatistics cost;
    if (std::find(parts.begin(), parts.end(), each.name) == parts.end()) continue;
    const auto encoder = each.load(folder, {}, cost);
    by_encoder.push_back(encoder->encode({prompt.of_encoder(by_encoder.size())}, 77).front());
  }
  return family.join(by_encoder, "here");
}

// Without its first encoder, XL encodes the first prompt with the second one.
TEST(Families, XlRunsWithoutItsFirstEncoder) {
  const TemporaryFolder temporary;
  const std::filesystem::path& folder = temporary.path();
  for (const char* part : {"tokenizer", "text_encoder", "tokenizer_2", "text_encoder_2"})
    std::filesystem::create_directory_symlink(golden_folder("tiny-sdxl") / part, folder / part);
  Json index = read_json(golden_folder("tiny-sdxl") / "model_index.json");
  const auto encode = [&](const Prompt& prompt, const std::vector<std::string>& parts) {
    std::ofstream(folder / "model_index.json") << index;
    return encoded("StableDiffusionXLPipeline", folder, prompt, parts);
  };
  const Conditioning expected =
      encode({.text = "a square", .others = {"a red circle"}}, {"text_encoder", "text_encoder_2"});
  const Prompt second{.text = "a red circle", .others = {"ignored"}};
  index["text_encoder"] = {nullptr, nullptr};
  try {
    encode(second, {"text_encoder_2"});
    ADD_FAILURE() << "a tokenizer without an encoder was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'text_encoder' must be there if 'tokenizer' is"),
              std::string::npos)
        << error.what();
  }
  index["tokenizer"] = {nullptr, nullptr};
  const Conditioning actual = encode(second, {"text_encoder_2"});
  const int64_t width = actual.at(kTokens).size(1), both = expected.at(kTokens).size(1);
  EXPECT_GT(both, width);
  EXPECT_TRUE(at::equal(actual.at(kTokens), expected.at(kTokens).narrow(1, both - width, width)));
  EXPECT_TRUE(at::equal(actual.at(kPooled), expected.at(kPooled)));
}

// Of two encoders the tokens are those of the first, and then of the second, and the first pooled vector
// counts; a tensor that one alone has is taken from it.
TEST(Families, JoinWhatSeveralTextEncodersGive) {
  const at::Tensor ones = at::ones({2, 3}), twos = at::full({2, 4}, 2.0), pooled = at::ones({5});
  const Conditioning all = join_conditionings({{{kPooled, pooled}}, {{kTokens, twos}, {kPooled, twos}}}, "");
  EXPECT_TRUE(all.at(kPooled).is_same(pooled));
  EXPECT_TRUE(all.at(kTokens).is_same(twos));
  const auto join = find_family("StableDiffusionXLPipeline", "").join;
  EXPECT_TRUE(
      at::equal(join({{{kTokens, ones}}, {{kTokens, twos}}}, "").at(kTokens), at::concat({ones, twos}, 1)));
  try {
    join({{{kTokens, ones}}, {{kTokens, at::ones({3, 3})}}}, "FOLDER");
    ADD_FAILURE() << "prompts of different lengths were joined";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "[FOLDER] the two text encoders take prompts of 2 and 3 tokens");
  }
}

// Most of diffusers' pipelines divide by the scaling factor and ignore the shift in the VAE's config.
TEST(Families, OnlyZImagesLatentsAreShifted) {
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
  const auto shifted = find_family("ZImagePipeline", "").load_decoder(model.folder(), {}, cost);
  EXPECT_LE(relative_error(shifted->decode(z), plain->decode(z)), kComponentTolerance);
}

// Some VAEs give a mean and a deviation for each channel, which only diffusers' XL pipeline undoes.
TEST(Families, OnlyXlUndoesMeanAndDeviation) {
  const CheckpointFixture model({});
  const std::filesystem::path vae = model.folder() / "vae", plain = golden_folder("vae-quant");
  std::filesystem::create_directories(vae);
  std::filesystem::create_symlink(plain / "diffusion_pytorch_model.safetensors",
                                  vae / "diffusion_pytorch_model.safetensors");
  Json config = read_json(plain / "config.json");
  config["latents_mean"] = {0.5, -1.0, 0.25, 2.0};
  config["latents_std"] = {2.0, 0.5, 1.5, 3.0};
  std::ofstream(vae / "config.json") << config.dump();
  const at::Tensor z = read_golden("vae-quant/golden/golden.safetensors").at("latents");
  LoadStatistics cost;
  const auto decoder = load_autoencoder_kl_decoder(plain, {}, cost);
  const auto vector = [&](const char* key) {
    return at::tensor(config[key].get<std::vector<double>>(), at::kFloat).view({1, 4, 1, 1});
  };
  const double scale = decoder->config.scaling_factor;
  const at::Tensor undone = (z / scale * vector("latents_std") + vector("latents_mean")) * scale;
  for (const char* name :
       {"PixArtSigmaPipeline", "StableDiffusionPipeline", "StableDiffusionXLPipeline", "ZImagePipeline"}) {
    const bool is_xl = name == std::string("StableDiffusionXLPipeline");
    const at::Tensor image = find_family(name, "").load_decoder(model.folder(), {}, cost)->decode(z);
    EXPECT_LE(relative_error(image, decoder->decode(is_xl ? undone : z)), kComponentTolerance) << name;
  }
}

// The defaults are those of diffusers' pipelines.
TEST(Families, HaveTheirOwnDefaults) {
  for (const auto& [name, steps, guidance, tokens, takes_sample] :
       {std::tuple("PixArtAlphaPipeline", 20, 4.5, 120, true),
        {"PixArtSigmaPipeline", 20, 4.5, 300, false},
        {"StableDiffusionPipeline", 50, 7.5, 77, false},
        {"StableDiffusionXLPipeline", 50, 5.0, 77, false},
        {"LatentConsistencyModelPipeline", 4, 8.5, 77, false},
        {"ZImagePipeline", 50, 5.0, 512, false},
        {"Flux2KleinPipeline", 50, 4.0, 512, false},
        {"Flux2Pipeline", 50, 4.0, 512, false}}) {
    const Family& family = find_family(name, "");
    EXPECT_EQ(family.default_steps, steps) << name;
    EXPECT_EQ(family.default_guidance, guidance) << name;
    EXPECT_EQ(family.default_max_sequence_length, tokens) << name;
    EXPECT_EQ(family.takes_sample_of_single_step, takes_sample) << name;
  }
}

// Of the families whose denoisers have one class, a config is of exactly one.
TEST(Families, ALoneConfigIsOfOneFamily) {
  const std::vector<std::pair<std::string, Json>> configs = {
      {"PixArtAlphaPipeline", {{"_class_name", "PixArtTransformer2DModel"}}},
      {"PixArtSigmaPipeline",
       {{"_class_name", "PixArtTransformer2DModel"}, {"use_additional_conditions", false}}},
      {"StableDiffusionPipeline", {{"_class_name", "UNet2DConditionModel"}, {"time_cond_proj_dim", nullptr}}},
      {"StableDiffusionXLPipeline",
       {{"_class_name", "UNet2DConditionModel"}, {"addition_embed_type", "text_time"}}},
      // A latent consistency model of XL runs in XL's pipeline.
      {"StableDiffusionXLPipeline",
       {{"_class_name", "UNet2DConditionModel"},
        {"addition_embed_type", "text_time"},
        {"time_cond_proj_dim", 256}}},
      {"LatentConsistencyModelPipeline",
       {{"_class_name", "UNet2DConditionModel"}, {"time_cond_proj_dim", 256}}},
      {"OpenSoraV1_1Pipeline", {{"_class_name", "STDiT2"}}},
      {"OpenSoraPipeline", {{"_class_name", "STDiT3"}}},
      {"ZImagePipeline", {{"_class_name", "ZImageTransformer2DModel"}}},
      {"Flux2KleinPipeline", {{"_class_name", "Flux2Transformer2DModel"}, {"guidance_embeds", false}}},
      {"Flux2Pipeline", {{"_class_name", "Flux2Transformer2DModel"}}}};
  for (const auto& [expected, config] : configs) {
    std::vector<std::string> fitting;
    for (const Family& family : families()) {
      const bool has_class = std::any_of(family.parts.begin(), family.parts.end(), [&](const auto& part) {
        return std::find(part.classes.begin(), part.classes.end(), config["_class_name"]) !=
               part.classes.end();
      });
      if (has_class && family.lone.is_of_family(config)) fitting.push_back(family.class_name);
    }
    EXPECT_EQ(fitting, std::vector<std::string>{expected}) << config;
  }
}

}  // namespace
}  // namespace tessera::models
