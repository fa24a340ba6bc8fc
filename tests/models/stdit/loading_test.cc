// Reads Open-Sora's transformer from a folder.
#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include <fstream>

#include "core/log.h"
#include "models/stdit/stdit3.h"
#include "tests/support/golden.h"
#include "tests/support/temporary_folder.h"
#include "weights/checkpoint.h"
#include "weights/safetensors.h"

namespace tessera::models {
namespace {

// The golden stdit3_a as it would be published: 20 tokens of learned text, beside what is not read.
class STDiT3Folder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_ / "transformer");
    auto weights = read_golden((golden_folder("opensora") / "stdit3_a.weights.safetensors").string());
    weights["pos_embed"] = at::zeros({1});
    weights["pos_embed_temporal"] = at::zeros({1});
    weights::write_safetensors(folder_ / "transformer" / "model.safetensors", weights);
  }

  void configure(int64_t model_max_length) const {
    Json config = JsonConfig::read(golden_folder("opensora") / "stdit3_a.json").values().at("config");
    config["model_max_length"] = model_max_length;
    std::ofstream(folder_ / "transformer" / "config.json") << config.dump();
  }

  TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_F(STDiT3Folder, IsReadAsItIsPublished) {
  configure(20);
  const DenoiserShape shape = read_stdit3_shape(folder_);
  EXPECT_EQ(shape.heads, 2);
  EXPECT_EQ(shape.blocks, 3);
  EXPECT_TRUE(shape.is_video && shape.axial_attention);
  LoadStatistics statistics;
  std::vector<std::string> warnings;
  {
    const ScopedLogSink sink([&](LogLevel /*level*/, const std::string& line) { warnings.push_back(line); });
    EXPECT_EQ(load_stdit3(folder_, {}, statistics)->conditioning_width(), 32);
  }
  EXPECT_TRUE(warnings.empty()) << warnings.front();
  EXPECT_GT(statistics.bytes_held, 270'000U * 4);
}

// The learned text is cut, or goes on with its last token.
TEST_F(STDiT3Folder, MayHaveALearnedTextOfAnotherLength) {
  const at::Tensor stored = read_golden((golden_folder("opensora") / "stdit3_a.weights.safetensors").string())
                                .at("y_embedder.y_embedding");
  for (const int64_t length : {12, 20, 25}) {
    configure(length);
    LoadStatistics statistics;
    EXPECT_NO_THROW(load_stdit3(folder_, {}, statistics)) << length;
    STDiTConfig config(JsonConfig::read(folder_ / "transformer" / "config.json"));
    config.stored_text_length = stored.size(0);
    weights::Checkpoint checkpoint(folder_ / "transformer", weights::Library::kTransformers);
    const STDiTText text(weights::Scope(checkpoint, {}) / "y_embedder", config);
    const at::Tensor rows = at::arange(length).clamp_max(stored.size(0) - 1);
    EXPECT_TRUE(at::equal(text.y_embedding, stored.index_select(0, rows))) << length;
  }
}

}  // namespace
}  // namespace tessera::models
