#include "engine/overflow.h"

#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include <limits>

#include "core/error.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_pixart.h"
#include "tests/support/tiny_stable_diffusion.h"
#include "weights/safetensors.h"

namespace tessera::engine {
namespace {

Settings settings_of(const Model& model, at::ScalarType dtype, double guidance) {
  Request request;
  request.prompts = {"a cat"};
  request.dtype = dtype;
  request.guidance_scale = guidance;
  return resolve(request, model);
}

void expect_error(const Error& error, ErrorKind kind, const std::string& part) {
  EXPECT_EQ(error.kind(), kind) << error.what();
  EXPECT_NE(spell(error.what()).find(part), std::string::npos) << error.what();
}

// The first of the causes that can be one: the guidance, the weights, the dtype; else it is the model.
TEST(Overflow, NamesItsCause) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const Settings settings = settings_of(tiny(), dtype, 4.5);
    expect_error(overflow_error(1, 4, settings, tiny()), ErrorKind::kUsage,
                 fmt::format("[dtype] the latents are not finite from step 2 of 4 on, in {}; try dtype fp32",
                             dtype_name(dtype)));
    expect_error(image_overflow_error(settings, tiny()), ErrorKind::kUsage,
                 fmt::format("overflowed in the decoder, in {}; try dtype fp32", dtype_name(dtype)));
  }
  const Settings settings = settings_of(tiny(), at::kFloat, 4.5);
  expect_error(overflow_error(0, 4, settings, tiny()), ErrorKind::kInput,
               "the latents are not finite from step 1 of 4 on, in fp32, and all weights are; try a smaller "
               "guidance_scale");
  expect_error(image_overflow_error(settings, tiny()), ErrorKind::kInput,
               "overflowed in the decoder, in fp32; is the decoder of another model?");
  expect_error(overflow_error(0, 4, settings_of(tiny(), at::kHalf, 51), tiny()), ErrorKind::kUsage,
               "[guidance_scale] the latents are not finite from step 1 of 4 on, with 51; try a smaller one");
}

// Writes the tensors of a golden's file with one that is not finite.
void damage(const std::string& golden, const std::string& key, const std::filesystem::path& to) {
  std::map<std::string, at::Tensor> tensors = read_golden(golden);
  tensors.at(key) = at::full_like(tensors.at(key), std::numeric_limits<double>::quiet_NaN());
  weights::write_safetensors(to, tensors);
}

// Of several variants, those that the run has read.
TEST(Overflow, FindsTheDamageOfAVariant) {
  const TemporaryFolder temporary;
  const std::filesystem::path folder = temporary.path() / "model";
  std::filesystem::copy(tiny_sd_folder(), folder, std::filesystem::copy_options::recursive);
  damage("tiny-sd/unet/diffusion_pytorch_model.safetensors", "conv_out.bias",
         folder / "unet" / "diffusion_pytorch_model.ema.safetensors");
  for (const char* variant : {"", "ema"}) {
    const Model model = read_model(folder, std::nullopt, variant);
    const Error error = overflow_error(0, 4, settings_of(model, at::kBFloat16, 4.5), model);
    if (*variant == '\0') {
      expect_error(error, ErrorKind::kUsage, "try dtype fp32");
    } else {
      expect_error(error, ErrorKind::kInput,
                   "unet] the weight conv_out.bias holds numbers that are not finite");
    }
  }
}

// The folder with its configs has no weights.
TEST(Overflow, FindsTheDamageOfASingleFile) {
  const TemporaryFolder temporary;
  const std::filesystem::path folder = temporary.path() / "configs",
                              bad = temporary.path() / "bad.safetensors";
  std::filesystem::copy(tiny_sd_folder(), folder, std::filesystem::copy_options::recursive);
  for (const char* part :
       {"unet/diffusion_pytorch_model", "vae/diffusion_pytorch_model", "text_encoder/model"})
    ASSERT_TRUE(std::filesystem::remove(folder / fmt::format("{}.safetensors", part)));
  const std::string key = "model.diffusion_model.out.2.bias";
  damage("tiny-sd/single.safetensors", key, bad);
  const auto error_of = [&](const std::filesystem::path& file) {
    const Model model = read_model(folder, file);
    return overflow_error(0, 4, settings_of(model, at::kBFloat16, 4.5), model);
  };
  expect_error(error_of(tiny_sd_folder() / "single.safetensors"), ErrorKind::kUsage, "try dtype fp32");
  expect_error(error_of(bad), ErrorKind::kInput,
               fmt::format("[{}] the weight {} holds numbers that are not finite", bad.string(), key));
}

}  // namespace
}  // namespace tessera::engine
