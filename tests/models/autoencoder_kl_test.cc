#include "models/autoencoder_kl.h"

#include <gtest/gtest.h>

#include <numeric>

#include "comm/collectives.h"
#include "core/error.h"
#include "core/log.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/golden.h"
#include "tests/support/rank_threads.h"

namespace tessera::models {
namespace {

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;

LoadOptions options_of(at::ScalarType dtype) {
  LoadOptions options;
  options.placement.dtype = dtype;
  return options;
}

class AutoencoderKLGolden : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<AutoencoderKLDecoder> decoder(at::ScalarType dtype) {
    return load_autoencoder_kl_decoder(golden_folder(GetParam()), options_of(dtype), decoder_cost_);
  }
  std::unique_ptr<AutoencoderKLEncoder> encoder(at::ScalarType dtype) {
    return load_autoencoder_kl_encoder(golden_folder(GetParam()), options_of(dtype), encoder_cost_);
  }
  // The goldens hold only the first sample of each stage.
  void expect_stage(const at::Tensor& got, const std::string& name) {
    EXPECT_LE(relative_error(got, golden_.at(name).narrow(0, 0, got.size(0))), kComponentTolerance) << name;
  }
  double distance(const at::Tensor& got, const std::string& name) {
    return (got - golden_.at(name)).square().sum().item<double>();
  }

  std::map<std::string, at::Tensor> golden_ =
      read_golden(std::string(GetParam()) + "/golden/golden.safetensors");
  LoadStatistics decoder_cost_, encoder_cost_;
};

TEST_P(AutoencoderKLGolden, DecodesAsDiffusersInFp32) {
  const at::Tensor image = decoder(at::kFloat)->decode(golden_.at("latents"));
  EXPECT_EQ(image.scalar_type(), at::kFloat);
  EXPECT_TRUE(image.is_contiguous());
  expect_stage(image, "image");
}

TEST_P(AutoencoderKLGolden, DecodesInBlocksAsDiffusers) {
  const at::Tensor z = golden_.at("latents");
  nn::Tokens tokens(parallel::Grid{.rows = z.size(2), .columns = z.size(3)});
  tokens.limit_convolutions({.rows = 3});
  expect_stage(decoder(at::kFloat)->decode(z, tokens), "image");
}

TEST_P(AutoencoderKLGolden, EncodesAsDiffusersInFp32) {
  const LatentDistribution latents = encoder(at::kFloat)->encode(golden_.at("input"));
  expect_stage(latents.mean, "mean");
  expect_stage(latents.logvar, "logvar");
}

// Each stage gets the reference's input, so that an error shows in the stage that causes it.
TEST_P(AutoencoderKLGolden, EveryStageOfTheDecoderEqualsDiffusers) {
  const auto half = decoder(at::kFloat);
  const auto input = [&](const std::string& name) {
    return golden_.at("decoder." + name).clone(kChannelsLast);
  };
  const at::Tensor z = golden_.at("latents");
  nn::Tokens tokens(parallel::Grid{.rows = z.size(2), .columns = z.size(3)});
  nn::Rows rows(tokens);
  expect_stage(half->mid_block(input("conv_in"), rows), "decoder.mid_block");
  std::string before = "mid_block";
  for (size_t i = 0; i < half->up_blocks.size(); ++i) {
    expect_stage(half->up_blocks[i](input(before), rows), fmt::format("decoder.block.{}", i));
    before = fmt::format("block.{}", i);
  }
  expect_stage(half->conv_out(half->conv_norm_out, input(before), rows), "image");
}

TEST_P(AutoencoderKLGolden, EveryStageOfTheEncoderEqualsDiffusers) {
  const auto half = encoder(at::kFloat);
  const auto input = [&](const std::string& name) {
    return golden_.at("encoder." + name).clone(kChannelsLast);
  };
  const at::Tensor image = golden_.at("input").narrow(0, 0, 1);
  nn::Tokens tokens(parallel::Grid{.rows = image.size(2), .columns = image.size(3)});
  nn::Rows rows(tokens);
  expect_stage(half->conv_in(image, rows), "encoder.conv_in");
  std::string before = "conv_in";
  for (size_t i = 0; i < half->down_blocks.size(); ++i) {
    expect_stage(half->down_blocks[i](input(before), rows), fmt::format("encoder.block.{}", i));
    before = fmt::format("block.{}", i);
  }
  expect_stage(half->mid_block(input(before), rows), "encoder.mid_block");
}

TEST_P(AutoencoderKLGolden, IsAsNearTheTruthInBf16AsDiffusers) {
  const at::Tensor image = decoder(at::kBFloat16)->decode(golden_.at("latents"));
  const LatentDistribution latents = encoder(at::kBFloat16)->encode(golden_.at("input"));
  EXPECT_LE(std::sqrt(distance(image, "image")),
            1.1 * std::sqrt(distance(golden_.at("image.bf16"), "image")));
  EXPECT_LE(std::sqrt(distance(latents.mean, "mean") + distance(latents.logvar, "logvar")),
            1.1 * std::sqrt(distance(golden_.at("mean.bf16"), "mean") +
                            distance(golden_.at("logvar.bf16"), "logvar")));
}

// Rows of the latents and of the picture lie on several ranks, even on more ranks than rows of latents.
TEST_P(AutoencoderKLGolden, RowsOnManyRanksMakeTheSamePicture) {
  const auto decodes = decoder(at::kFloat);
  const auto encodes = encoder(at::kFloat);
  const at::Tensor z = golden_.at("latents"), image = golden_.at("input");
  const at::Tensor whole = decodes->decode(z);
  const LatentDistribution latents = encodes->encode(image);
  const int64_t factor = decodes->scale_factor();
  for (const int64_t ranks : {2, 3, 4, 8}) {
    comm::run_ranks_as_threads(ranks, [&](comm::World world) {
      std::vector<int64_t> all(static_cast<size_t>(ranks));
      std::iota(all.begin(), all.end(), 0);
      const comm::Group group = world.group(all, "vae");
      comm::connect(group, at::kCPU);
      const auto tokens_of = [&](const at::Tensor& x, int64_t unit) {
        const parallel::Grid grid{.rows = x.size(2), .columns = x.size(3)};
        return nn::Tokens(parallel::Cut(grid, parallel::GridAxis::kRows, 1, ranks, unit),
                          {.ring = group, .all = group});
      };
      nn::Tokens of_latents = tokens_of(z, 1), of_image = tokens_of(image, factor);
      const Range rows = of_latents.cut().part(0, group.rank), pixels = times(rows, factor);
      const Range lines = of_image.cut().part(0, group.rank);
      const at::Tensor picture = decodes->decode(z.narrow(2, rows.begin, rows.length), of_latents);
      const LatentDistribution own = encodes->encode(image.narrow(2, lines.begin, lines.length), of_image);
      ASSERT_EQ(picture.size(2), pixels.length);
      ASSERT_EQ(own.mean.size(2) * factor, lines.length);
      if (rows.length > 0) {
        EXPECT_LE(relative_error(picture, whole.narrow(2, pixels.begin, pixels.length)), 1e-4) << ranks;
      }
      if (lines.length > 0) {
        const Range latent{lines.begin / factor, lines.length / factor};
        EXPECT_LE(relative_error(own.mean, latents.mean.narrow(2, latent.begin, latent.length)), 1e-4);
        EXPECT_LE(relative_error(own.logvar, latents.logvar.narrow(2, latent.begin, latent.length)), 1e-4);
      }
    });
  }
}

// On the CPU an fp16 model computes in fp32.
TEST_P(AutoencoderKLGolden, Fp16IsNoWorseThanItsWeights) {
  EXPECT_EQ(decoder(at::kHalf)->dtype, at::kFloat);
}

TEST_P(AutoencoderKLGolden, AHalfReadsOnlyItsOwnWeights) {
  weights::Checkpoint checkpoint(golden_folder(GetParam()), weights::Library::kDiffusers);
  uint64_t encoder_bytes = 0, decoder_bytes = 0;
  for (const std::string& key : checkpoint.keys()) {
    const auto& entry = checkpoint.entry(key);
    const bool encodes = key.starts_with("encoder.") || key.starts_with("quant_conv.");
    (encodes ? encoder_bytes : decoder_bytes) += entry.end - entry.begin;
  }
  decoder(at::kFloat);
  encoder(at::kFloat);
  EXPECT_EQ(decoder_cost_.bytes_read, decoder_bytes);
  EXPECT_EQ(encoder_cost_.bytes_read, encoder_bytes);
}

INSTANTIATE_TEST_SUITE_P(Models, AutoencoderKLGolden,
                         ::testing::Values("vae-quant", "vae-shift", "vae-old-names"));

// Scales of parts would be cut at other places than those of the whole image.
TEST(AutoencoderKLEncoder, RefusesPartsOfSizesThatItCannotHalve) {
  LoadStatistics cost;
  const auto encoder = load_autoencoder_kl_encoder(golden_folder("vae-quant"), options_of(at::kFloat), cost);
  nn::Tokens tokens(parallel::Cut({.rows = 8, .columns = 10}, parallel::GridAxis::kRows, 1, 2, 4),
                    {.ring = {.rank = 0, .size = 2}, .all = {.rank = 0, .size = 2}});
  EXPECT_THROW(encoder->encode(at::zeros({1, 3, 4, 10}), tokens), Error);
  EXPECT_NO_THROW(encoder->encode(at::zeros({1, 3, 8, 10})));  // equal to diffusers: tests/models/stdit
}

TEST(AttentionBlock, LeavesWhatOthersHold) {
  constexpr int64_t kChannels = 32;
  std::map<std::string, at::Tensor> w = {{"group_norm.weight", at::ones({kChannels})},
                                         {"group_norm.bias", at::zeros({kChannels})}};
  for (const std::string name : {"to_q", "to_k", "to_v", "to_out.0"}) {
    w[name + ".weight"] = at::randn({kChannels, kChannels});
    w[name + ".bias"] = at::randn({kChannels});
  }
  const CheckpointFixture file(w);
  nn::Tokens tokens(parallel::Grid{.rows = 4, .columns = 6});
  const AttentionBlock block(file.scope(at::kFloat), kChannels, /*norm_groups=*/8);
  const at::Tensor x = at::randn({1, kChannels, 4, 6}).contiguous(kChannelsLast), before = x.clone();
  const at::Tensor result = block(x, nn::Rows(tokens));
  EXPECT_TRUE(at::equal(x, before));
  EXPECT_FALSE(at::equal(result, before));
}

std::map<std::string, at::Tensor> resnet_weights(int64_t in, int64_t out) {
  return {{"norm1.weight", at::randn({in}) * 0.3 + 1},
          {"norm1.bias", at::randn({in}) * 0.3},
          {"norm2.weight", at::randn({out}) * 0.3 + 1},
          {"norm2.bias", at::randn({out}) * 0.3},
          {"conv1.weight", at::randn({out, in, 3, 3}) / 24},
          {"conv1.bias", at::randn({out}) * 0.3},
          {"conv2.weight", at::randn({out, out, 3, 3}) / 34},
          {"conv2.bias", at::randn({out}) * 0.3},
          {"conv_shortcut.weight", at::randn({out, in, 1, 1}) / 8},
          {"conv_shortcut.bias", at::randn({out})}};
}

// A residual block of separate operations.
at::Tensor separate_resnet(const std::map<std::string, at::Tensor>& w, const at::Tensor& x, int64_t groups,
                           ResnetBlock2D::Activation activation) {
  const auto get = [&](const std::string& name) { return w.at(name).to(x.scalar_type()); };
  const auto step = [&](const at::Tensor& t, const std::string& i) {
    const at::Tensor n =
        activation(at::group_norm(t, groups, get("norm" + i + ".weight"), get("norm" + i + ".bias"), 1e-6));
    return at::conv2d(n, get("conv" + i + ".weight"), get("conv" + i + ".bias"), 1, 1);
  };
  return at::conv2d(x, get("conv_shortcut.weight"), get("conv_shortcut.bias")) + step(step(x, "1"), "2");
}

// Convolutions of 64 channels and more use other kernels.
TEST(ResnetBlock2D, IsAsNearTheTruthInBf16AsSeparateOperations) {
  at::manual_seed(4);
  constexpr int64_t kIn = 64, kOut = 128, kGroups = 32;
  const std::map<std::string, at::Tensor> w = resnet_weights(kIn, kOut);
  const at::Tensor x = at::randn({2, kIn, 21, 18});
  const auto separate = [&](at::ScalarType dtype) {
    return separate_resnet(w, x.to(dtype), kGroups, [](const at::Tensor& t) { return at::silu(t); });
  };
  const CheckpointFixture file(w);
  const auto ours = [&](at::ScalarType dtype) {
    nn::Tokens tokens(parallel::Grid{.rows = x.size(2), .columns = x.size(3)});
    const ResnetBlock2D block(file.scope(dtype), kIn, kOut, {.norm_groups = kGroups});
    return block(x.to(dtype).contiguous(kChannelsLast), nn::Rows(tokens));
  };
  const at::Tensor truth = separate(at::kDouble);
  const auto distance = [&](const at::Tensor& y) {
    return (y.to(at::kDouble) - truth).square().sum().item<double>();
  };
  EXPECT_LE(relative_error(ours(at::kFloat), truth), kComponentTolerance);
  EXPECT_LE(std::sqrt(distance(ours(at::kBFloat16))), 1.1 * std::sqrt(distance(separate(at::kBFloat16))));
}

TEST(ResnetBlock2D, HasTheActivationOfTheFile) {
  at::manual_seed(5);
  constexpr int64_t kIn = 32, kOut = 64, kGroups = 8;
  const std::map<std::string, at::Tensor> w = resnet_weights(kIn, kOut);
  const at::Tensor x = at::randn({2, kIn, 9, 7});
  const CheckpointFixture file(w);
  for (const auto& [name, expected] : {std::pair<const char*, ResnetBlock2D::Activation>(
                                           "gelu", [](const at::Tensor& t) { return at::gelu(t); }),
                                       {"relu", [](const at::Tensor& t) { return at::relu(t); }},
                                       {"mish", [](const at::Tensor& t) { return at::mish(t); }}}) {
    const AutoencoderKLConfig config(JsonConfig(Json{{"act_fn", name}}, "config.json"));
    const ResnetBlock2D block(file.scope(at::kFloat), kIn, kOut,
                              {.norm_groups = kGroups, .activation = config.activation});
    nn::Tokens tokens(parallel::Grid{.rows = x.size(2), .columns = x.size(3)});
    EXPECT_LE(relative_error(block(x.contiguous(kChannelsLast), nn::Rows(tokens)),
                             separate_resnet(w, x.to(at::kDouble), kGroups, expected)),
              kComponentTolerance)
        << name;
  }
}

// Returns the error of the config's constructor for `json`, or its warnings if there is no error.
std::string verdict(const std::string& json) {
  std::string messages;
  const LogSink before = set_log_sink([&](LogLevel, const std::string& text) { messages += text; });
  try {
    const AutoencoderKLConfig config(JsonConfig(parse_json(json, "config.json"), "config.json"));
  } catch (const Error& error) {
    messages = error.what();
  }
  set_log_sink(before);
  return messages;
}

TEST(AutoencoderKLConfig, RefusesWhatItCannotRun) {
  const auto expect = [](const std::string& json, const std::string& words) {
    EXPECT_NE(verdict(json).find(words), std::string::npos) << json << ": " << verdict(json);
  };
  EXPECT_EQ(verdict("{}"), "");
  expect(R"({"_class_name": "AutoencoderTiny"})", "AutoencoderKL");
  expect(R"({"act_fn": "tanh"})",
         "'act_fn' must be \"silu\", \"swish\" (the same), \"gelu\", \"relu\" or \"mish\"");
  expect(R"({"up_block_types": ["AttnUpDecoderBlock2D"]})", "UpDecoderBlock2D");
  expect(R"({"block_out_channels": [32, 64]})", "down_block_types");
  expect(R"({"block_out_channels": [33]})", "norm_num_groups");
  expect(R"({"block_out_channels": []})", "block_out_channels");
  expect(R"({"scaling_factor": 0})", "scaling_factor");
  expect(R"({"layers_per_block": -1})", "layers_per_block");
  expect(R"({"out_channels": 4})", "'out_channels' is 4: only images of three colours");
  for (const char* key : {"act_fn", "scaling_factor", "sample_size", "norm_num_groups", "up_block_types"})
    expect(fmt::format(R"({{"{}": null}})", key), fmt::format("'{}' must be", key));
  expect(R"({"latents_mean": [1, 2]})", "latents_mean");
  EXPECT_EQ(verdict(R"({"act_fn": "swish"})"), "");
}

// Files of Stable Diffusion 1 do not have them.
TEST(AutoencoderKLConfig, HasTheDefaultsOfDiffusers) {
  const auto config = [](const char* json) {
    return AutoencoderKLConfig(JsonConfig(parse_json(json, "config.json"), "config.json"));
  };
  EXPECT_EQ(config("{}").scaling_factor, 0.18215);
  EXPECT_EQ(config("{}").latent_channels, 4);
  EXPECT_EQ(config("{}").sample_size, 32);
  EXPECT_EQ(config(R"({"sample_size": [512, 256]})").sample_size, 512);
  EXPECT_EQ(verdict(R"({"sample_size": [512]})").find("[config.json] 'sample_size' must be"), 0U)
      << verdict(R"({"sample_size": [512]})");
}

// diffusers scales by them only if it has both.
TEST(AutoencoderKLConfig, IgnoresAMeanWithoutADeviation) {
  for (const char* json : {R"({"latents_mean": [1, 2, 3, 4]})", R"({"latents_std": [1, 2, 3, 4]})"}) {
    const AutoencoderKLConfig config(JsonConfig(parse_json(json, "config.json"), "config.json"));
    EXPECT_TRUE(config.latents_mean.empty() && config.latents_std.empty()) << json;
  }
}

TEST(AutoencoderKLConfig, ReadsNullAsDiffusersDoes) {
  const char* const json = R"({"use_quant_conv": null, "use_post_quant_conv": null, "force_upcast": null,
                               "mid_block_add_attention": null, "shift_factor": null, "latents_mean": null})";
  const AutoencoderKLConfig config(JsonConfig(parse_json(json, "config.json"), "config.json"));
  EXPECT_FALSE(config.use_quant_conv || config.use_post_quant_conv || config.force_upcast ||
               config.mid_block_add_attention);
  EXPECT_EQ(config.shift_factor, 0);
}

}  // namespace
}  // namespace tessera::models
