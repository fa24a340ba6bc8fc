#include "models/unet_2d_condition.h"

#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "comm/collectives.h"
#include "core/error.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/denoiser_golden.h"
#include "tests/support/rank_threads.h"

namespace tessera::models {
namespace {

constexpr int64_t kScaleFactor = 8;

class UNetGolden : public DenoiserGolden {
 protected:
  std::unique_ptr<Denoiser> load(at::ScalarType dtype, const comm::TensorGroups& groups = {}) {
    LoadOptions options;
    options.placement.dtype = dtype;
    options.placement.groups = groups;
    LoadStatistics cost;
    return load_unet_folder(golden_folder(GetParam()), options, cost);
  }
  UNet2DConfig config() { return UNet2DConfig(JsonConfig::read(golden_folder(GetParam()) / "config.json")); }

  // Returns the prediction for the local rows of the golden's latents, those of `tokens`.
  at::Tensor run(const Denoiser& model, nn::Tokens& tokens, double timestep) {
    const at::Tensor z = golden_.at("latents");
    std::vector<Conditioning> prompts;
    for (const char* row : {"0", "1"})
      prompts.push_back({{kTokens, golden_.at(fmt::format("prompt.{}", row))},
                         {kPooled, golden_.at(fmt::format("pooled.{}", row))}});
    const LatentShape latent_shape{.latent_height = z.size(2),
                                   .latent_width = z.size(3),
                                   .scale_factor = kScaleFactor,
                                   .sizes = {96, 80, 3, 5, 100, 90}};
    const std::vector<int64_t> prompt_of = {0, 1, 1};
    std::map<std::string, at::Tensor> numbers;
    if (golden_.contains("guidance_weight"))
      numbers[kGuidanceScale] = golden_.at("guidance_weight").to(at::kDouble) + 1;
    const auto forward = model.start({prompts, prompt_of, latent_shape, tokens, numbers});
    forward->begin({timestep, at::tensor({timestep}, at::kFloat)});
    const Range rows = tokens.cut().part(0, tokens.rank());
    Hidden hidden = forward->embed(z.narrow(2, rows.begin, rows.length));
    const auto blocks = static_cast<int64_t>(2 * config().levels.size() + 1);
    for (int64_t i = 0; i < blocks; ++i) forward->block(i, hidden);
    return forward->head(hidden);
  }
  at::Tensor run(at::ScalarType dtype, double timestep) override {
    const at::Tensor z = golden_.at("latents");
    nn::Tokens tokens(parallel::Grid{.rows = z.size(2), .columns = z.size(3)});
    return run(*load(dtype), tokens, timestep);
  }
};

TEST_P(UNetGolden, EqualsDiffusersInFp32) {
  expect_diffusers_output_in_fp32();
}

TEST_P(UNetGolden, IsAsNearTheTruthInBf16AsDiffusers) {
  expect_to_be_as_near_the_truth_in_bf16();
}

// The rows lie on several ranks, synchronously, with each method that divides the tokens.
TEST_P(UNetGolden, RowsOnManyRanksGiveTheSame) {
  const at::Tensor z = golden_.at("latents"), whole = run(at::kFloat, 417.5);
  const int64_t unit = int64_t{1} << (config().levels.size() - 1);
  for (const int64_t ranks : {2, 3}) {
    int64_t heads = config().mid_heads;
    for (const UNet2DConfig::Level& level : config().levels) heads = std::min(heads, level.heads);
    for (const auto method : {&nn::TokenGroups::ring, &nn::TokenGroups::gather, &nn::TokenGroups::ulysses}) {
      const bool by_heads = method == &nn::TokenGroups::ulysses;
      if (by_heads && ranks > heads) continue;
      comm::run_ranks_as_threads(ranks, [&](comm::World world) {
        std::vector<int64_t> all(static_cast<size_t>(ranks));
        std::iota(all.begin(), all.end(), 0);
        const comm::Group group = world.group(all, "sequence");
        comm::connect(group, at::kCPU);
        const parallel::Cut cut({.rows = z.size(2), .columns = z.size(3)}, parallel::GridAxis::kRows, 1,
                                ranks, unit);
        nn::TokenGroups groups{.all = group};
        groups.*method = group;
        nn::Tokens tokens(cut, groups);
        const Range rows = cut.part(0, group.rank);
        const at::Tensor out = run(*load(at::kFloat), tokens, 417.5);
        ASSERT_EQ(out.size(2), rows.length);
        EXPECT_LE(relative_error(out, whole.narrow(2, rows.begin, rows.length)), 1e-4)
            << ranks
            << (by_heads                           ? " ulysses"
                : method == &nn::TokenGroups::ring ? " ring"
                                                   : " gather");
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, UNetGolden,
                         ::testing::Values("unet-sd15", "unet-sd21", "unet-sdxl", "unet-lcm"));

struct DisplacedCase {
  const char* model;
  int64_t ranks;
};

// Compares every mode with an oracle of displaced patches on diffusers' U-Net
// (tools/reference/displaced_oracle.py).
class Displaced : public ::testing::TestWithParam<DisplacedCase> {};

TEST_P(Displaced, EqualsTheOracle) {
  const auto [name, ranks] = GetParam();
  const std::filesystem::path folder = golden_folder(name);
  const auto inputs = read_golden(std::string(name) + "/golden/golden.safetensors");
  const auto expected = read_golden("displaced/golden.safetensors");
  const at::Tensor latents = expected.at(std::string(name) + ".latents");
  const std::vector<double> timesteps = {900, 700, 450, 200};
  const UNet2DConfig config(JsonConfig::read(folder / "config.json"));
  LoadStatistics cost;
  const auto model = load_unet_folder(folder, {}, cost);
  const std::vector<Conditioning> prompts = {
      {{kTokens, inputs.at("prompt.0")}, {kPooled, inputs.at("pooled.0")}}};
  const std::vector<int64_t> prompt_of = {0};
  const LatentShape latent_shape{.latent_height = latents.size(2),
                                 .latent_width = latents.size(3),
                                 .scale_factor = kScaleFactor,
                                 .sizes = {96, 80, 3, 5, 100, 90}};
  const parallel::Cut cut({.rows = latents.size(2), .columns = latents.size(3)}, parallel::GridAxis::kRows, 1,
                          ranks, int64_t{1} << (config.levels.size() - 1));
  for (const auto& [mode_name, mode] : parallel::displaced_modes()) {
    for (int64_t warmup = 0; warmup <= 2; ++warmup) {
      const at::Tensor whole = expected.at(fmt::format("{}.{}.{}.{}", name, ranks, mode_name, warmup));
      comm::run_ranks_as_threads(ranks, [&, mode = mode, &mode_name = mode_name](comm::World world) {
        std::vector<int64_t> all(static_cast<size_t>(world.size()));
        std::iota(all.begin(), all.end(), 0);
        const comm::Group group = world.group(all, "displaced");
        comm::connect(group, at::kCPU);
        nn::Tokens tokens(cut, {.all = group, .displaced = parallel::Displacement{mode, warmup}});
        const Range rows = cut.part(0, group.rank);
        const auto forward = model->start({prompts, prompt_of, latent_shape, tokens});
        at::Tensor out;
        for (size_t step = 0; step < timesteps.size(); ++step) {
          tokens.begin(static_cast<int64_t>(step), static_cast<int64_t>(timesteps.size()));
          forward->begin({timesteps[step], at::tensor({timesteps[step]}, at::kFloat)});
          const at::Tensor z =
              latents.narrow(0, static_cast<int64_t>(step), 1).narrow(2, rows.begin, rows.length);
          Hidden hidden = forward->embed(z);
          for (int64_t i = 0; i < static_cast<int64_t>(2 * config.levels.size() + 1); ++i)
            forward->block(i, hidden);
          out = forward->head(hidden);
        }
        EXPECT_LE(relative_error(out, whole.narrow(2, rows.begin, rows.length)), 1e-4)
            << mode_name << ", " << warmup << " steps of warm-up, rank " << group.rank;
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Displaced,
                         ::testing::Values(DisplacedCase{"unet-sd15", 2}, DisplacedCase{"unet-sd15", 3},
                                           DisplacedCase{"unet-sd15", 4}, DisplacedCase{"unet-sd15", 8},
                                           DisplacedCase{"unet-sdxl", 2}, DisplacedCase{"unet-sdxl", 3}));

TEST(UNet2DConfig, NamesWhatCannotRun) {
  const auto refused = [](const std::string& key, Json value) {
    Json json = read_json(golden_folder("unet-sdxl") / "config.json");
    json[key] = std::move(value);
    try {
      UNet2DConfig(JsonConfig(std::move(json), "unet/config.json"));
    } catch (const Error& error) {
      const std::string text = error.what();
      return text.find(fmt::format("'{}'", key)) != std::string::npos && text.find('\n') == std::string::npos;
    }
    return false;
  };
  for (const char* key : {"time_embedding_type", "act_fn", "addition_embed_type", "mid_block_type"})
    EXPECT_TRUE(refused(key, "another")) << key;
  EXPECT_FALSE(refused("act_fn", "swish"));
  EXPECT_TRUE(refused("block_out_channels", {8, 7, 16}));
  EXPECT_TRUE(refused("layers_per_block", {1, 2}));
  EXPECT_TRUE(refused("attention_head_dim", {3, 3, 3}));
  EXPECT_TRUE(refused("cross_attention_dim", {32, 32, 16}));
  EXPECT_TRUE(refused("down_block_types", {"DownBlock2D", "AttnDownBlock2D", "DownBlock2D"}));
  EXPECT_TRUE(refused("only_cross_attention", {true, false, false}));
  EXPECT_TRUE(refused("projection_class_embeddings_input_dim", 24));
  EXPECT_TRUE(refused("in_channels", 9));
  // Parameters that diffusers cannot do without, or takes for another network, when they are null.
  for (const char* key : {"flip_sin_to_cos", "act_fn", "freq_shift", "block_out_channels", "layers_per_block",
                          "attention_head_dim", "down_block_types", "only_cross_attention"})
    EXPECT_TRUE(refused(key, nullptr)) << key;
  // Its U-Nets have the heads under attention_head_dim.
  EXPECT_TRUE(refused("num_attention_heads", 2));
}

// diffusers gives such numbers of the guidance scale that are not finite.
TEST(UNet2DConfig, RefusesAGuidanceEmbeddingWithoutFrequencies) {
  Json json = read_json(golden_folder("unet-lcm") / "config.json");
  const auto width = [&](const Json& value) {
    json["time_cond_proj_dim"] = value;
    return UNet2DConfig(JsonConfig(json, "unet/config.json")).time_cond_proj_dim;
  };
  EXPECT_EQ(width(nullptr), 0);
  for (const int64_t good : {1, 4, 5, 256}) EXPECT_EQ(width(good), good);
  for (const Json& bad : {Json(0), Json(2), Json(3), Json("8"), Json(false)}) {
    try {
      width(bad);
      ADD_FAILURE() << bad << " is accepted";
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find("[unet/config.json] 'time_cond_proj_dim' must be "), 0U)
          << error.what();
    }
  }
}

TEST(UNet2DConfig, ReadsNullAsDiffusersDoes) {
  Json json = read_json(golden_folder("unet-sdxl") / "config.json");
  EXPECT_TRUE(UNet2DConfig(JsonConfig(json, "")).has_mid_block);
  json.update({{"mid_block_type", nullptr}, {"attention_type", nullptr}, {"use_linear_projection", nullptr}});
  const UNet2DConfig config(JsonConfig(json, ""));
  EXPECT_FALSE(config.has_mid_block);
  EXPECT_FALSE(config.use_linear_projection);
  json.erase("mid_block_type");
  EXPECT_TRUE(UNet2DConfig(JsonConfig(json, "")).has_mid_block);
}

// Files of Stable Diffusion 1 do not have them.
TEST(UNet2DConfig, HasTheDefaultsOfDiffusers) {
  Json json = read_json(golden_folder("unet-sd15") / "config.json");
  for (const char* key : {"use_linear_projection", "sample_size", "layers_per_block"}) json.erase(key);
  const UNet2DConfig config(JsonConfig(json, ""));
  EXPECT_FALSE(config.use_linear_projection);
  EXPECT_EQ(config.sample_size, 64);
  EXPECT_EQ(config.levels.front().layers, 2);
}

// The first files had no size of their own.
TEST(StableDiffusionShape, IsOf64InFilesFromBeforeDiffusers09) {
  const CheckpointFixture model({});
  std::filesystem::create_directory(model.folder() / "unet");
  const auto size = [&](const Json& version, int64_t sample_size) {
    Json json = read_json(golden_folder("unet-sd15") / "config.json");
    json["sample_size"] = sample_size;
    json["_diffusers_version"] = version;
    std::ofstream(model.folder() / "unet" / "config.json") << json;
    EXPECT_EQ(read_unet_shape(model.folder()).sample_size, sample_size);
    return read_stable_diffusion_shape(model.folder()).sample_size;
  };
  EXPECT_EQ(size("0.8.1", 32), 64);
  EXPECT_EQ(size("0.8.9.dev0", 63), 64);
  EXPECT_EQ(size("0.6.0", 96), 96);
  for (const Json& version : {Json("0.9.0.dev0"), Json("0.10.0"), Json("1.0.0"), Json("x"), Json()})
    EXPECT_EQ(size(version, 32), 32) << version;
}

}  // namespace
}  // namespace tessera::models
