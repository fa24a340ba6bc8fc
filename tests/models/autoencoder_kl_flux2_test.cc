#include "models/autoencoder_kl_flux2.h"

#include <gtest/gtest.h>

#include <numeric>

#include "core/error.h"
#include "core/log.h"
#include "tests/support/golden.h"
#include "tests/support/rank_threads.h"

namespace tessera::models {
namespace {

std::unique_ptr<Decoder> flux2_decoder(at::ScalarType dtype) {
  LoadOptions options;
  options.placement.dtype = dtype;
  LoadStatistics statistics;
  return load_autoencoder_kl_flux2_decoder(golden_folder("flux2-vae"), options, statistics);
}

std::unique_ptr<Encoder> flux2_encoder(at::ScalarType dtype) {
  LoadOptions options;
  options.placement.dtype = dtype;
  LoadStatistics statistics;
  return load_autoencoder_kl_flux2_encoder(golden_folder("flux2-vae"), options, statistics);
}

std::map<std::string, at::Tensor> flux2_pictures() {
  return read_golden("flux2-vae/golden/golden.safetensors");
}

// Returns what is written to the log while `run` runs, or the error that ends it.
template <typename Run>
std::string said_by(const Run& run) {
  std::string messages;
  const LogSink before = set_log_sink([&](LogLevel, const std::string& text) { messages += text; });
  try {
    run();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    messages = error.what();
  }
  set_log_sink(before);
  return messages;
}

TEST(AutoencoderKLFlux2, UnpacksLatentsAsDiffusers) {
  auto golden = flux2_pictures();
  const at::Tensor unpacked = unpacked_flux2_latents(golden_folder("flux2-vae"), {}, golden.at("latents"));
  EXPECT_EQ(unpacked.sizes(), golden.at("unpacked").sizes());
  EXPECT_LE(relative_error(unpacked, golden.at("unpacked")), kComponentTolerance);
}

TEST(AutoencoderKLFlux2, DecodesAsDiffusersInFp32) {
  auto golden = flux2_pictures();
  const at::Tensor decoded = flux2_decoder(at::kFloat)->decode(golden.at("latents"));
  EXPECT_EQ(decoded.scalar_type(), at::kFloat);
  EXPECT_LE(relative_error(decoded, golden.at("decoded")), kComponentTolerance);
  EXPECT_LE(relative_error((decoded / 2 + 0.5).clamp(0, 1), golden.at("image")), kComponentTolerance);
}

TEST(AutoencoderKLFlux2, IsAsNearTheTruthInBf16AsDiffusers) {
  auto golden = flux2_pictures();
  const auto distance = [&](const at::Tensor& x) {
    return (x - golden.at("decoded")).square().sum().sqrt().item<double>();
  };
  EXPECT_LE(distance(flux2_decoder(at::kBFloat16)->decode(golden.at("latents"))),
            1.1 * distance(golden.at("decoded.bf16")));
}

TEST(AutoencoderKLFlux2, EncodesAsDiffusersInFp32) {
  auto golden = flux2_pictures();
  const at::Tensor encoded = flux2_encoder(at::kFloat)->encode(golden.at("pictures"));
  EXPECT_EQ(encoded.scalar_type(), at::kFloat);
  ASSERT_EQ(encoded.sizes(), golden.at("encoded").sizes());
  EXPECT_LE(relative_error(encoded, golden.at("encoded")), kComponentTolerance);
}

TEST(AutoencoderKLFlux2, EncodesAsNearTheTruthInBf16AsDiffusers) {
  auto golden = flux2_pictures();
  const auto distance = [&](const at::Tensor& x) {
    return (x - golden.at("encoded")).square().sum().sqrt().item<double>();
  };
  EXPECT_LE(distance(flux2_encoder(at::kBFloat16)->encode(golden.at("pictures"))),
            1.1 * distance(golden.at("encoded.bf16")));
}

// On some ranks there are no rows.
TEST(AutoencoderKLFlux2, RowsOnManyRanksMakeTheSamePicture) {
  const at::Tensor z = flux2_pictures().at("latents");
  const auto decoder = flux2_decoder(at::kFloat);
  const at::Tensor whole = decoder->decode(z);
  for (const int64_t ranks : {2, 3, 4}) {
    comm::run_ranks_as_threads(ranks, [&](comm::World world) {
      std::vector<int64_t> all(static_cast<size_t>(ranks));
      std::iota(all.begin(), all.end(), 0);
      const comm::Group group = world.group(all, "vae");
      comm::connect(group, at::kCPU);
      const parallel::Grid grid{.rows = z.size(2), .columns = z.size(3)};
      nn::Tokens tokens(parallel::Cut(grid, parallel::GridAxis::kRows, 1, ranks),
                        {.ring = group, .all = group});
      const Range rows = tokens.cut().part(0, group.rank), pixels = times(rows, decoder->scale_factor());
      const at::Tensor picture = decoder->decode(z.narrow(2, rows.begin, rows.length), tokens);
      ASSERT_EQ(picture.size(2), pixels.length);
      if (rows.length > 0) {
        EXPECT_LE(relative_error(picture, whole.narrow(2, pixels.begin, pixels.length)), 1e-4) << ranks;
      }
    });
  }
}

TEST(AutoencoderKLFlux2, SaysNothingOfWeightsThatTakeNoPart) {
  EXPECT_EQ(said_by([] {
              flux2_encoder(at::kFloat);
              flux2_decoder(at::kFloat);
              unpacked_flux2_latents(golden_folder("flux2-vae"), {}, flux2_pictures().at("latents"));
            }),
            "");
}

TEST(AutoencoderKLFlux2, HasTheScaleOfPackedLatents) {
  const LatentScale scale = read_autoencoder_kl_flux2_scale(golden_folder("flux2-vae"), 12);
  EXPECT_EQ(scale.pixels, 8);
  EXPECT_EQ(scale.channels, 12);
  EXPECT_EQ(flux2_decoder(at::kFloat)->scale_factor(), 8);
  EXPECT_NE(said_by([] {
              read_autoencoder_kl_flux2_scale(golden_folder("flux2-vae"), 3);
            }).find("'latent_channels' must be a quarter of the 3 in_channels"),
            std::string::npos);
}

TEST(AutoencoderKLFlux2Config, RefusesWhatItCannotRun) {
  const auto verdict = [](const std::string& json) {
    return said_by([&] {
      const AutoencoderKLFlux2Config config(JsonConfig(parse_json(json, "config.json"), "config.json"));
    });
  };
  for (const char* json : {"{}", R"({"decoder_block_out_channels": null, "force_upcast": false})",
                           R"({"decoder_block_out_channels": [96, 192, 384, 384]})",
                           R"({"patch_size": [1, 4], "batch_norm_momentum": null})"})
    EXPECT_EQ(verdict(json), "") << json;
  for (const auto& [json, part] :
       {std::pair(R"({"_class_name": "AutoencoderKL"})", "'_class_name' must be \"AutoencoderKLFlux2\""),
        {R"({"patch_size": [1, 1]})", "'patch_size' is [1,1]: the pipelines pack latents by 2 x 2"},
        {R"({"decoder_block_out_channels": [96, 192, 384]})",
         "'decoder_block_out_channels' must be 4 numbers"},
        {R"({"block_out_channels": [8, 8, 8, 8], "decoder_block_out_channels": [96, 192, 384, 384]})",
         "'block_out_channels' must be multiples of norm_num_groups"},
        {R"({"batch_norm_eps": -1})", "'batch_norm_eps'"},
        {R"({"layers_per_block": null})", "'layers_per_block'"},
        {R"({"scaling_factor": 0.3611})", "options without effect: scaling_factor"}})
    EXPECT_NE(verdict(json).find(part), std::string::npos) << json << ": " << verdict(json);
}

}  // namespace
}  // namespace tessera::models
