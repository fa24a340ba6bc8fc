// Reads whole models and what their configurations hold.
#include <fmt/ranges.h>

#include <fstream>

#include "core/error.h"
#include "core/log.h"
#include "engine/component_cache.h"
#include "engine/model.h"
#include "tests/support/golden_folder_fixture.h"

namespace tessera::engine {
namespace {

namespace fs = std::filesystem;

class ModelConfig : public GoldenFolderFixture, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    copy_golden(GetParam());
    for (const auto& entry : fs::directory_iterator(folder_)) {
      if (fs::exists(entry.path() / "config.json")) configs_.push_back(entry.path() / "config.json");
    }
  }

  std::vector<std::string> warnings() const {
    std::vector<std::string> result;
    const ScopedLogSink sink([&](LogLevel level, const std::string& message) {
      const bool is_new = std::find(result.begin(), result.end(), message) == result.end();
      if (level == LogLevel::kWarning && is_new) result.push_back(message);
    });
    check_weights(read_model(folder_, {}, ""));
    return result;
  }

  std::vector<fs::path> configs_;
};

INSTANTIATE_TEST_SUITE_P(All, ModelConfig,
                         testing::Values("tiny-pixart", "tiny-sd", "tiny-sdxl", "tiny-open-sora",
                                         "tiny-open-sora-1.1", "tiny-z-image", "tiny-flux2-klein",
                                         "tiny-flux2-dev"));

TEST_P(ModelConfig, HasNoKeyThatNobodyReads) {
  EXPECT_EQ(warnings(), std::vector<std::string>()) << fmt::format("{}", fmt::join(warnings(), "; "));
}

TEST_P(ModelConfig, NamesKeysWithoutEffect) {
  ASSERT_GE(configs_.size(), 3U);
  for (const fs::path& path : configs_) {
    change(path, {{"new_option", 3}, {"an_option_that_is_off", false}, {"_private", 1}});
    const std::string expected = fmt::format("[{}] options without effect: new_option", path.string());
    EXPECT_EQ(warnings(), std::vector<std::string>{expected});
    change(path, {{"new_option", nullptr}});
  }
}

TEST_P(ModelConfig, NamesUnknownKeysOfTheIndex) {
  change(folder_ / "model_index.json", {{"new_option", true},
                                        {"an_option_that_is_off", false},
                                        {"_private", 1},
                                        {"is_distilled", true},
                                        {"controlnet", {"diffusers", "X"}},
                                        {"none", {nullptr, nullptr}}});
  const bool may_be_distilled = GetParam() == std::string("tiny-flux2-klein");
  EXPECT_EQ(warnings(),
            std::vector<std::string>{fmt::format("[{}] options without effect: controlnet, {}new_option",
                                                 (folder_ / "model_index.json").string(),
                                                 may_be_distilled ? "" : "is_distilled, ")});
}

// A component is read when it is needed, and parts of two versions must not make one image.
TEST_P(ModelConfig, NoticesThatFilesHaveChangedSinceItWasRead) {
  comm::World world;
  const parallel::Ranks ranks(world, parallel::Layout());
  const auto load = [&](const Model& model) {
    ComponentCache components(model, 0);
    components.expect(component_forms(model, at::kFloat, at::kCPU, ranks, false));
    components.get(kDecoder);
  };
  const Model model = read_model(folder_);
  std::ofstream(folder_ / "vae" / "image.png") << "not of the model";
  EXPECT_NO_THROW(load(model));
  const fs::path config = folder_ / "vae" / "config.json", moved = folder_ / "moved";
  fs::copy_file(config, moved);
  fs::last_write_time(moved, fs::last_write_time(config));
  fs::rename(moved, config);
  try {
    load(model);
    ADD_FAILURE() << "it was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(
        error.message(),
        fmt::format("[{}] was changed or replaced while the model was in use; run again", config.string()));
  }
  EXPECT_NO_THROW(load(read_model(folder_)));
}

TEST_P(ModelConfig, RefusesQuantisedParts) {
  for (const fs::path& path : configs_) {
    change(path, {{"quantization_config", {{"quant_method", "bitsandbytes"}}}});
    try {
      warnings();
      ADD_FAILURE() << path << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(
          std::string(error.what()),
          fmt::format("[{}] 'quantization_config' is {{\"quant_method\":\"bitsandbytes\"}}: a part whose "
                      "weights are quantised cannot run yet",
                      path.string()));
    }
    change(path, {{"quantization_config", nullptr}});
  }
}

}  // namespace
}  // namespace tessera::engine
