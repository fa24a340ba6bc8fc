// A model of STDiT3-XL's form without weights, for tests of traces.
#pragma once

#include <gtest/gtest.h>

#include <fstream>

#include "engine/model.h"
#include "engine/request.h"
#include "parallel/layout.h"
#include "tests/support/golden.h"
#include "tests/support/temporary_folder.h"

namespace tessera::plan {

// Writes the folder of a model of STDiT3-XL's form without weights and tokenizers. The VAE is a small one.
class StditXl : public ::testing::Test {
 protected:
  void SetUp() override {
    namespace fs = std::filesystem;
    for (const char* const file :
         {"model_index.json", "scheduler/scheduler_config.json", "text_encoder/config.json",
          "vae/config.json", "transformer/config.json"}) {
      fs::create_directories((temporary_.path() / file).parent_path());
      fs::copy_file(golden_folder("tiny-open-sora") / file, temporary_.path() / file);
    }
    Json config = read_json(temporary_.path() / "transformer" / "config.json");
    config.update({{"depth", 28},
                   {"hidden_size", 1152},
                   {"num_heads", 16},
                   {"caption_channels", 4096},
                   {"model_max_length", 300},
                   {"mlp_ratio", 4.0}});
    std::ofstream(temporary_.path() / "transformer" / "config.json") << config;
    model_ = engine::read_model(temporary_.path());
  }

  engine::Settings settings(int64_t frames, int64_t height, int64_t width) const {
    engine::Request request;
    request.prompts = {"a cat"};
    request.video.num_frames = frames;
    request.height = height;
    request.width = width;
    request.guidance_scale = 7;
    request.seed = 1;
    request.dtype = at::kBFloat16;
    return engine::resolve(request, model_);
  }

  static parallel::Layout whole() { return parallel::Layout{.stage_blocks = {28}}; }

  TemporaryFolder temporary_;
  engine::Model model_;
};

}  // namespace tessera::plan
