// Reads Open-Sora's transformer from a folder.
#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include <fstream>

#include "core/error.h"
#include "core/log.h"
#include "models/stdit/layers.h"
#include "models/stdit/loading.h"
#include "tests/support/golden.h"
#include "tests/support/temporary_folder.h"
#include "weights/checkpoint.h"
#include "weights/safetensors.h"

namespace tessera::models {
namespace {

struct Version {
  const char* golden;
  DenoiserShape (*read_shape)(const std::filesystem::path& model);
  std::unique_ptr<Denoiser> (*load)(const std::filesystem::path& model, const LoadOptions& options,
                                    LoadStatistics& statistics);
  int64_t blocks;
  uint64_t numbers;  // of weights that are used
};

void PrintTo(const Version& version, std::ostream* out) {
  *out << version.golden;
}

// A golden as it would be published: with a learned text, beside what is not read.
class STDiTFolder : public ::testing::TestWithParam<Version> {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_ / "transformer");
    auto weights = stored();
    weights["pos_embed"] = at::zeros({1});
    weights["pos_embed_temporal"] = at::zeros({1});
    weights::write_safetensors(folder_ / "transformer" / "model.safetensors", weights);
  }

  static std::map<std::string, at::Tensor> stored() {
    return read_golden("opensora/" + std::string(GetParam().golden) + ".weights.safetensors");
  }

  void configure(int64_t model_max_length, const Json& more = Json::object()) const {
    const std::string name = std::string(GetParam().golden) + ".json";
    Json config = JsonConfig::read(golden_folder("opensora") / name).values().at("config");
    config["model_max_length"] = model_max_length;
    config.update(more);
    std::ofstream(folder_ / "transformer" / "config.json") << config.dump();
  }

  TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_P(STDiTFolder, SaysWhichLatentsItWasTrainedOn) {
  const auto sample = [&](const Json& input_size) {
    configure(8, {{"input_size", input_size}});
    return GetParam().read_shape(folder_).video_sample;
  };
  EXPECT_EQ(sample(nullptr), std::nullopt);
  EXPECT_EQ(sample({nullptr, nullptr, nullptr}), std::nullopt);
  for (const auto& sizes : {std::array<int64_t, 3>{1, 1, 1}, {5, 32, 48}, {65536, 65536, 65536}})
    EXPECT_EQ(sample(sizes), sizes);
  for (const Json& wrong : {Json{0, 1, 1}, Json{1, 65537, 1}, Json{1, 1}, Json{1, 1, 1, 1}, Json("16")})
    EXPECT_THROW(sample(wrong), Error) << wrong;
}

TEST_P(STDiTFolder, IsReadAsItIsPublished) {
  configure(stored().at("y_embedder.y_embedding").size(0));
  const DenoiserShape shape = GetParam().read_shape(folder_);
  EXPECT_EQ(shape.heads, 2);
  EXPECT_EQ(shape.blocks, GetParam().blocks);
  EXPECT_TRUE(shape.is_video && shape.axial_attention);
  LoadStatistics statistics;
  std::vector<std::string> warnings;
  {
    const ScopedLogSink sink([&](LogLevel /*level*/, const std::string& line) { warnings.push_back(line); });
    EXPECT_EQ(GetParam().load(folder_, {}, statistics)->conditioning_width(), 32);
  }
  EXPECT_TRUE(warnings.empty()) << warnings.front();
  EXPECT_GT(statistics.bytes_held, GetParam().numbers * 4);
}

TEST_P(STDiTFolder, WarnsOfRotationsThatItDoesNotTake) {
  configure(16);
  auto weights = stored();
  weights["rope.freqs"] = weights.at("rope.freqs") * 2;
  weights::write_safetensors(folder_ / "transformer" / "model.safetensors", weights);
  std::vector<std::string> warnings;
  const ScopedLogSink sink([&](LogLevel /*level*/, const std::string& line) { warnings.push_back(line); });
  LoadStatistics statistics;
  GetParam().load(folder_, {}, statistics);
  EXPECT_EQ(warnings,
            std::vector<std::string>{fmt::format(
                "[{}] 'rope.freqs' is not used: the model computes it, and the file has other numbers",
                (folder_ / "transformer").string())});
}

// The learned text is cut, or goes on with its last token.
TEST_P(STDiTFolder, MayHaveALearnedTextOfAnotherLength) {
  const at::Tensor learned = stored().at("y_embedder.y_embedding");
  for (const int64_t length : {12, 16, 20, 25}) {
    configure(length);
    LoadStatistics statistics;
    EXPECT_NO_THROW(GetParam().load(folder_, {}, statistics)) << length;
    STDiTConfig config(JsonConfig::read(folder_ / "transformer" / "config.json"));
    config.stored_text_length = learned.size(0);
    weights::Checkpoint checkpoint(folder_ / "transformer", weights::Library::kTransformers);
    const STDiTText text(weights::Scope(checkpoint, {}) / "y_embedder", config);
    const at::Tensor rows = at::arange(length).clamp_max(learned.size(0) - 1);
    EXPECT_TRUE(at::equal(text.y_embedding, learned.index_select(0, rows))) << length;
  }
}

// A token is multiplied with each weight of a block, except with those for the text.
TEST_P(STDiTFolder, KnowsTheWorkOfItsEnds) {
  double block = 0;
  for (const auto& [name, tensor] : stored()) {
    if (name.find("blocks.0.") != std::string::npos && name.ends_with(".weight") && tensor.dim() == 2 &&
        name.find("kv_linear") == std::string::npos)
      block += static_cast<double>(tensor.numel());
  }
  configure(stored().at("y_embedder.y_embedding").size(0));
  const DenoiserShape shape = GetParam().read_shape(folder_);
  const auto embedding = static_cast<double>(stored().at("x_embedder.proj.weight").numel());
  EXPECT_DOUBLE_EQ(shape.embedding, embedding / block);
  const int predicted = GetParam().load == load_stdit2 ? 2 : 1;  // for each channel of the latents
  EXPECT_DOUBLE_EQ(shape.head, predicted * embedding / block);
}

INSTANTIATE_TEST_SUITE_P(Versions, STDiTFolder,
                         ::testing::Values(Version{"stdit2_a", read_stdit2_shape, load_stdit2, 2, 170'000},
                                           Version{"stdit3_a", read_stdit3_shape, load_stdit3, 3, 270'000}),
                         [](const auto& info) { return std::string(info.param.golden); });

}  // namespace
}  // namespace tessera::models
