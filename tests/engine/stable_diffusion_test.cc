// These tests compare Stable Diffusion 1.x with diffusers, from the prompt to the pixels, in every form in
// which it is published.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/generate.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_pixart.h"
#include "tests/support/tiny_stable_diffusion.h"
#include "weights/safetensors.h"

namespace tessera::engine {
namespace {

class StableDiffusion : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const auto& item : std::filesystem::recursive_directory_iterator(tiny_sd_folder())) {
      const std::filesystem::path place = folder_ / std::filesystem::relative(item.path(), tiny_sd_folder());
      if (item.is_directory()) {
        std::filesystem::create_directories(place);
      } else {
        std::filesystem::create_symlink(item.path(), place);
      }
    }
  }

  // Writes weights of the same names and shapes beside those of a component.
  void add_other_weights(const std::string& component, const std::string& plain, const std::string& other) {
    std::map<std::string, at::Tensor> tensors;
    for (const auto& [name, tensor] : read_golden(fmt::format("tiny-sd/{}/{}", component, plain)))
      tensors[name] = at::randn(tensor.sizes());
    weights::write_safetensors(folder_ / component / other, tensors);
  }
  void replace(const std::string& file, const std::string& text) {
    std::filesystem::remove(folder_ / file);
    std::ofstream(folder_ / file) << text;
  }

  TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();  // the model, file by file
};

TEST_F(StableDiffusion, EqualsDiffusers) {
  for (const char* name : {"plain", "all", "unguided"})
    expect_tiny_sd_golden(generate(resolve(tiny_sd_request(name), tiny_sd()), tiny_sd()), name, "a folder");
}

TEST_F(StableDiffusion, IsTheSameFromASingleFile) {
  const Model model = read_model(tiny_sd_folder(), tiny_sd_folder() / "single.safetensors");
  for (const char* name : {"plain", "all"})
    expect_tiny_sd_golden(generate(resolve(tiny_sd_request(name), model), model), name, "a single file");
}

// The hub's folder has the weights several times: those that are only for training, and in fp16.
TEST_F(StableDiffusion, IsTheSameFromAFolderOfTheHub) {
  const std::string unet = "diffusion_pytorch_model.safetensors";
  for (const char* variant : {"fp16", "non_ema"}) {
    add_other_weights("unet", unet, fmt::format("diffusion_pytorch_model.{}.safetensors", variant));
    add_other_weights("vae", unet, fmt::format("diffusion_pytorch_model.{}.safetensors", variant));
    add_other_weights("text_encoder", "model.safetensors", fmt::format("model.{}.safetensors", variant));
  }
  const Model model = read_model(folder_);
  expect_tiny_sd_golden(generate(resolve(tiny_sd_request("plain"), model), model), "plain", "the hub");
}

// A tokenizer without a length of its own takes as many tokens as the encoder has positions.
TEST_F(StableDiffusion, HasTheEncodersLengthWhereTheTokenizerHasNone) {
  Json json = read_json(tiny_sd_folder() / "tokenizer" / "tokenizer_config.json");
  ASSERT_EQ(json.erase("model_max_length"), 1U);
  replace("tokenizer/tokenizer_config.json", json.dump());
  const Model model = read_model(folder_);
  expect_tiny_sd_golden(generate(resolve(tiny_sd_request("plain"), model), model), "plain", "no length");
}

// diffusers' pipeline changes two options of the first releases' files.
TEST_F(StableDiffusion, CorrectsOldSchedulerFiles) {
  const auto latents = [&](const std::string& options) {
    replace(
        "scheduler/scheduler_config.json",
        R"({"_class_name": "DDIMScheduler", "beta_end": 0.002, "set_alpha_to_one": false, )" + options + "}");
    const Model model = read_model(folder_);
    Request request = tiny_sd_request("plain");
    request.output_type = OutputType::kLatent;
    return generate(resolve(request, model), model).latents;
  };
  EXPECT_TRUE(at::equal(latents(R"("clip_sample": true, "steps_offset": 0)"),
                        latents(R"("clip_sample": false, "steps_offset": 1)")));
}

// The CPU has no fp16 convolutions: those layers compute in fp32.
TEST_F(StableDiffusion, RunsInHalfPrecision) {
  Request request = tiny_sd_request("plain");
  const Result exact = generate(resolve(request, tiny_sd()), tiny_sd());
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    request.dtype = dtype;
    const Result rounded = generate(resolve(request, tiny_sd()), tiny_sd());
    const double error = relative_error(rounded.latents, exact.latents);
    EXPECT_LE(error, dtype == at::kHalf ? 0.01 : 0.1) << dtype;
    EXPECT_GT(error, 0) << dtype;

    models::LoadOptions options;
    options.placement.dtype = dtype;
    models::LoadStatistics cost;
    EXPECT_EQ(tiny_sd().family->load_denoiser(tiny_sd().folder, options, cost)->dtype(),
              dtype == at::kHalf ? at::kFloat : dtype);
  }
}

// The engine's ranks change their layout with each request.
TEST_F(StableDiffusion, IsTheSameOnManyRanks) {
  using parallel::degrees;
  std::vector<parallel::ParallelOptions> methods = {
      degrees(1, true, 1, 1, 1, 1),  degrees(1, false, 1, 1, 2, 1), degrees(1, false, 1, 2, 1, 1),
      degrees(1, false, 1, 1, 1, 2), degrees(2, false, 1, 1, 1, 1), {}};
  methods.back().displaced_patch_degree = 2;
  methods.back().displaced_mode = parallel::DisplacedMode::kFullSync;
  comm::run_ranks_as_threads(
      2,
      [&](const comm::World& world) {
        Engine engine(tiny_sd(), kNoLimit, world);
        for (const parallel::ParallelOptions& options : methods) {
          const Settings settings = resolve(tiny_sd_request("all"), tiny_sd());
          const auto layout = parallel::resolve_layout(options, workload(settings, tiny_sd()), std::nullopt);
          const Result result = engine.run(settings, layout);
          if (world.rank() == 0) expect_tiny_sd_golden(result, "all", parallel::degrees_text(options));
        }
      },
      comm::Wire::kShared);
}

// Two requests of one batch differ only in how far their prompts go through CLIP.
TEST_F(StableDiffusion, SkipsLayersOfThePromptsOfOneRequest) {
  Engine engine(tiny_sd(), kNoLimit);
  std::vector<Settings> batch;
  for (const int64_t skip : {0, 2}) {
    Request request = tiny_sd_request("plain");
    request.clip_skip = skip;
    batch.push_back(resolve(request, tiny_sd()));
  }
  const std::vector<Result> together = engine.run(batch);
  for (size_t i = 0; i < batch.size(); ++i)
    EXPECT_LE(relative_error(together[i].latents, engine.run(batch[i]).latents), 1e-5) << i;
  EXPECT_GT(relative_error(together[0].latents, together[1].latents), 1e-2);
}

class TiledDecoding : public ::testing::Test {
 protected:
  static Settings settings() {
    Request request = tiny_sd_request("plain");
    request.vae_tiling = true;
    return resolve(request, tiny_sd());
  }
};

TEST_F(TiledDecoding, EqualsDiffusers) {
  expect_tiny_sd_golden(generate(settings(), tiny_sd()), "tiled", "one rank");
}

// Four ranks decode six tiles, of which the last one has three if its share is large; previews are decoded in
// tiles as well.
TEST_F(TiledDecoding, IsTheSameOnManyRanksAndInPreviews) {
  parallel::ParallelOptions options = parallel::degrees(1, true, 1, 1, 2, 1);
  std::vector<parallel::Layout> layouts;
  for (const std::vector<double>& shares : {std::vector<double>(), {1, 1, 1, 7}, {5, 1, 1, 1}}) {
    options.rank_shares = shares;
    layouts.push_back(parallel::resolve_layout(options, workload(settings(), tiny_sd()), std::nullopt));
  }
  comm::run_ranks_as_threads(
      4,
      [&](const comm::World& world) {
        Engine engine(tiny_sd(), kNoLimit, world);
        for (const parallel::Layout& layout : layouts) {
          Observer observer;
          std::vector<Image> shown;
          observer.preview_every = 1;
          observer.preview_images = true;
          observer.previewed = [&](const Preview& preview) { shown = preview.images; };
          const Result result = engine.run(settings(), layout, observer);
          if (world.rank() != 0) continue;
          expect_tiny_sd_golden(result, "tiled", "four ranks");
          ASSERT_EQ(shown.size(), 1U);
          EXPECT_LE(pixel_difference(pixels_of(shown), pixels_of(result.images)), 1);
        }
      },
      comm::Wire::kShared);
}

}  // namespace
}  // namespace tessera::engine
