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
