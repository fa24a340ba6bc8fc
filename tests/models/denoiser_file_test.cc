// Files of denoisers as they are downloaded, against what diffusers' models give with their numbers
// (tools/golden/original_names.py).
#include "weights/denoiser_file.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/log.h"
#include "models/flux2.h"
#include "models/z_image.h"
#include "tests/support/golden.h"
#include "tests/support/temporary_folder.h"
#include "weights/safetensors.h"

namespace tessera::models {
namespace {

using LoadDenoiser = std::unique_ptr<Denoiser>(const std::filesystem::path&, const LoadOptions&,
                                               LoadStatistics&);

struct LoadedFile {
  std::unique_ptr<Denoiser> denoiser;
  LoadStatistics statistics;
  std::vector<std::string> warnings;
};

LoadedFile load_denoiser_file(LoadDenoiser& load, const std::string& folder,
                              const std::filesystem::path& file) {
  LoadedFile loaded;
  const ScopedLogSink sink([&](LogLevel, const std::string& message) { loaded.warnings.push_back(message); });
  LoadOptions options;
  options.single_file = weights::open_tensor_file(file);
  loaded.denoiser = load(golden_folder(folder), options, loaded.statistics);
  return loaded;
}

at::Tensor prediction_of_file(const Denoiser& denoiser, int64_t blocks, const at::Tensor& z,
                              const std::vector<at::Tensor>& texts, int64_t patch) {
  constexpr double kTimestep = 417.5;
  std::vector<Conditioning> prompts;
  std::vector<int64_t> prompt_of;
  for (const at::Tensor& text : texts) {
    prompt_of.push_back(static_cast<int64_t>(prompts.size()));
    prompts.push_back({{kTokens, text}});
  }
  nn::Tokens tokens({1, z.size(2) / patch, z.size(3) / patch});
  const LatentShape latent_shape{z.size(2), z.size(3), 8};
  const auto forward = denoiser.start({prompts, prompt_of, latent_shape, tokens});
  forward->begin({kTimestep, at::tensor({kTimestep}, at::kFloat)});
  Hidden hidden = forward->embed(z);
  for (int64_t i = 0; i < blocks; ++i) forward->block(i, hidden);
  return forward->head(hidden);
}

TEST(DenoiserFiles, OfZImageEqualDiffusers) {
  const auto golden = read_golden("z-image-files/golden/golden.safetensors");
  const int64_t blocks = read_z_image_shape(golden_folder("z-image-files")).blocks;
  for (const auto& [name, file] :
       {std::pair("scaled", "scaled.safetensors"), {"quantised", "quantised.gguf"}}) {
    const LoadedFile loaded =
        load_denoiser_file(load_z_image, "z-image-files", golden_folder("z-image-files") / file);
    EXPECT_EQ(loaded.warnings, std::vector<std::string>{}) << name;
    const at::Tensor out = prediction_of_file(*loaded.denoiser, blocks, golden.at("latents"),
                                              {golden.at("prompt.0"), golden.at("prompt.1")}, 2);
    EXPECT_LE(relative_error(out, golden.at(fmt::format("output.{}", name))), kComponentTolerance) << name;
  }
}

TEST(DenoiserFiles, OfFlux2EqualDiffusers) {
  const auto golden = read_golden("flux2-files/golden/golden.safetensors");
  const int64_t blocks = read_flux2_shape(golden_folder("flux2-files")).blocks;
  const at::Tensor prompts = golden.at("prompts");
  for (const auto& [name, file] : {std::pair("original", "original.safetensors"),
                                   {"scaled", "scaled.safetensors"},
                                   {"quantised", "quantised.gguf"}}) {
    const LoadedFile loaded =
        load_denoiser_file(load_flux2, "flux2-files", golden_folder("flux2-files") / file);
    EXPECT_EQ(loaded.warnings, std::vector<std::string>{}) << name;
    const at::Tensor out =
        prediction_of_file(*loaded.denoiser, blocks, golden.at("latents"), {prompts[0], prompts[1]}, 1);
    EXPECT_LE(relative_error(out, golden.at(fmt::format("output.{}", name))), kComponentTolerance) << name;
  }
}

// What a file holds besides the denoiser does not go unnoticed, and what it lacks is named.
TEST(DenoiserFiles, NothingIsLeftUnreadInSilence) {
  const TemporaryFolder temporary;
  const std::filesystem::path path = temporary.path() / "file.safetensors";
  auto tensors = read_golden("flux2-files/original.safetensors");
  tensors.emplace("double_blocks.0.img_attn.qkv.bias", at::zeros({96}));
  tensors.emplace("vae.decoder.conv_in.bias", at::zeros({3}));
  weights::write_safetensors(path, tensors);
  const LoadedFile loaded = load_denoiser_file(load_flux2, "flux2-files", path);
  ASSERT_EQ(loaded.warnings.size(), 1U);
  EXPECT_NE(loaded.warnings[0].find("4 weights are not used, from 'transformer_blocks.0.attn.to_k.bias' to "
                                    "'vae.decoder.conv_in.bias'"),
            std::string::npos)
      << loaded.warnings[0];
  tensors.erase("single_blocks.0.linear2.weight");
  weights::write_safetensors(path, tensors);
  try {
    load_denoiser_file(load_flux2, "flux2-files", path);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 3);
    EXPECT_EQ(std::string(error.what()),
              fmt::format("[{}] weight 'single_transformer_blocks.0.attn.to_out.weight' is missing, which is "
                          "'single_blocks.0.linear2.weight' in the names of this file",
                          path.string()));
  }
}

}  // namespace
}  // namespace tessera::models
