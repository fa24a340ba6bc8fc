// Mistral 3 as a text encoder. That it gives what transformers gives is among the tests of its trunk
// (Qwen3Golden).
#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "core/log.h"
#include "models/qwen3_prompt.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/golden.h"
#include "tests/support/temporary_folder.h"

namespace tessera::models {
namespace {

Json mistral3_json(const Json& text) {
  return {{"model_type", "mistral3"}, {"text_config", text}};
}

Qwen3Config read_mistral3(const Json& json) {
  return Qwen3Config(JsonConfig(json, "config.json"), Trunk::kMistral3);
}

TEST(Mistral3Config, HasTheDefaultsOfTransformers) {
  const Qwen3Config config = read_mistral3(
      mistral3_json({{"hidden_size", 96}, {"num_attention_heads", 12}, {"num_key_value_heads", 4}}));
  EXPECT_EQ(config.vocab_size, 32000);
  EXPECT_EQ(config.intermediate_size, 14336);
  EXPECT_EQ(config.num_hidden_layers, 32);
  EXPECT_EQ(read_mistral3(mistral3_json(Json::object())).num_key_value_heads, 8);
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  using Windows = std::vector<std::optional<int64_t>>;
  EXPECT_EQ(config.windows, Windows(32, 4096));
  EXPECT_EQ(read_mistral3(mistral3_json({{"sliding_window", nullptr}})).windows, Windows(32));
  EXPECT_EQ(read_mistral3(mistral3_json({{"head_dim", nullptr}})).head_dim, 128);
}

TEST(Mistral3Config, RefusesWhatItCannotRun) {
  const auto refusal = [](const Json& json) {
    try {
      read_mistral3(json);
      return std::string("accepted");
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 3);
      return std::string(error.what());
    }
  };
  for (const auto& [json, part] :
       {std::pair<Json, const char*>(Json{{"model_type", "qwen3"}}, "'model_type' must be \"mistral3\""),
        {Json{{"model_type", "mistral3"}}, "'text_config' must be an object, but it is missing"},
        {mistral3_json({{"model_type", "ministral3"}}), "'model_type' must be \"mistral\""},
        {mistral3_json({{"hidden_act", "x"}}), "'hidden_act' must be one of gelu, "},
        {mistral3_json({{"head_dim", 7}}), "'head_dim' must be even"},
        {mistral3_json({{"hidden_size", 8}, {"num_attention_heads", 16}, {"num_key_value_heads", 1}}),
         "'hidden_size' must be at least num_attention_heads (16)"},
        {mistral3_json({{"rope_parameters", {{"rope_type", "axial"}}}}), "'rope_parameters'"},
        {mistral3_json({{"sliding_window", 0}}), "'sliding_window' must be"}})
    EXPECT_NE(refusal(json).find(part), std::string::npos) << refusal(json);
}

// Within the window of a token all tokens are seen, as without one. Padding in front is not counted.
TEST(Mistral3, SeesNoTokenBeyondItsWindow) {
  weights::Checkpoint checkpoint(golden_folder("mistral3"), weights::Library::kTransformers);
  const auto last_state = [&](std::optional<int64_t> window, const std::vector<int64_t>& ids, Range own) {
    Json json = read_json(golden_folder("mistral3") / "config.json");
    json["text_config"]["sliding_window"] = window ? Json(*window) : Json();
    return Qwen3Encoder(weights::Scope(checkpoint, {}), read_mistral3(json), {1})({{ids, own}}).at(0)[-1];
  };
  std::vector<int64_t> ids(20, 3), others = ids;
  others[12] = 5;  // seven places before the last
  EXPECT_TRUE(at::equal(last_state(7, ids, {13, 7}), last_state({}, ids, {13, 7})));
  EXPECT_LE(relative_error(last_state(8, others, {12, 8}), last_state({}, others, {12, 8})), 1e-5);
  EXPECT_GE(relative_error(last_state(7, others, {12, 8}), last_state({}, others, {12, 8})), 1e-3);
  EXPECT_LE(relative_error(last_state(7, others, {12, 8}), last_state(7, ids, {12, 8})), 1e-5);
}

// Keys of what reads pictures count as read.
TEST(Mistral3Config, AsksForTheKeysOfFiles) {
  const JsonConfig json = JsonConfig::read(golden_folder("mistral3") / "config.json");
  const Qwen3Config config(json, Trunk::kMistral3);
  for (const std::string& key : json.unread()) {
    EXPECT_TRUE(key.starts_with("text_config.") || key == "architectures" || key == "dtype" ||
                key == "tie_word_embeddings" || key == "transformers_version")
        << key;
    for (const char* part : {"rope", "window", "head", "hidden", "layer", "size", "eps"})
      EXPECT_EQ(key.find(part), std::string::npos) << key;
  }
}

class Mistral3TextEncoderTest : public ::testing::Test {
 protected:
  // The message of FLUX.2 dev.
  const Qwen3PromptOptions own_ = {.trunk = Trunk::kMistral3,
                                   .states = {1, 3, 4},
                                   .system =
                                       "You are an AI that reasons about image descriptions. You give "
                                       "structured responses focusing on object "
                                       "relationships, object\nattribution and actions without speculation.",
                                   .left_out = "[IMG]",
                                   .pads = true};
  const std::filesystem::path tokenizer_ = golden_folder("mistral_tokenizer"),
                              encoder_ = golden_folder("mistral3");
};

TEST_F(Mistral3TextEncoderTest, GivesWhatFlux2DevConditionsOn) {
  const auto golden = read_golden("mistral3/golden/golden.safetensors");
  std::vector<std::string> warnings;
  const ScopedLogSink sink([&](LogLevel, const std::string& message) { warnings.push_back(message); });
  for (const bool stays : {true, false}) {
    LoadStatistics statistics;
    Qwen3TextEncoder encoder(tokenizer_, encoder_, own_, {.placement = {}, .blocks = {}, .stays = stays},
                             statistics);
    EXPECT_TRUE(warnings.empty()) << warnings.front();
    const std::vector<Conditioning> made =
        encoder.encode({{.text = ""},
                        {.text = "A Red circle above a BLUE square"},
                        {.text = " \u041a\u0440\u0430\u0441\u043d\u044b\u0439 <|im_end|> e\u0301 42\n\n"}},
                       128);
    for (size_t i = 0; i < made.size(); ++i) {
      const at::Tensor& expected = golden.at(fmt::format("dev.{}", i));
      ASSERT_EQ(made[i].at(kTokens).sizes(), expected.sizes()) << i;
      EXPECT_LE(relative_error(made[i].at(kTokens), expected), kComponentTolerance) << i;
    }
    warnings.clear();  // the message alone has more tokens
  }
}

// Emoji, marks, digits, lines, spaces, special tokens inside a prompt, and prompts beyond 512 tokens. The
// states of the embedding tell the ids.
TEST_F(Mistral3TextEncoderTest, TakesTheIdsOfDiffusersPipeline) {
  Qwen3PromptOptions own = own_;
  own.states = {0};
  LoadStatistics statistics;
  Qwen3TextEncoder encoder(tokenizer_, encoder_, own, {}, statistics);
  std::vector<std::string> warnings;
  const ScopedLogSink sink([&](LogLevel, const std::string& message) { warnings.push_back(message); });
  const at::Tensor table =
      read_golden("mistral3/model.safetensors").at("language_model.model.embed_tokens.weight");
  const Json lines = read_json(tokenizer_ / "lines.json");
  EXPECT_GE(lines.size(), 50U);
  size_t cut = 0;
  for (const Json& line : lines) {
    std::vector<int64_t> ids = line["ids"].get<std::vector<int64_t>>();
    cut += ids.size() == 512 ? 1 : 0;
    ids.insert(ids.begin(), 512 - ids.size(), 11);
    const at::Tensor states =
        encoder.encode({{.text = line["text"].get<std::string>()}}, 512).at(0).at(kTokens);
    EXPECT_TRUE(at::equal(states, table.index_select(0, at::tensor(ids, at::kLong)))) << line["text"];
  }
  EXPECT_GE(cut, 2U);
  EXPECT_EQ(warnings.size(), cut);
}

// The side of padding is that of the tokenizer's file.
TEST_F(Mistral3TextEncoderTest, PadsOnEitherSide) {
  const TemporaryFolder folder;
  std::filesystem::copy(tokenizer_, folder.path(), std::filesystem::copy_options::recursive);
  Json config = read_json(tokenizer_ / "tokenizer_config.json");
  config["padding_side"] = "right";
  std::ofstream(folder.path() / "tokenizer_config.json") << config;
  LoadStatistics statistics;
  Qwen3PromptOptions own = own_;
  own.states = {0};
  own.system = {};
  const auto states = [&](const std::filesystem::path& tokenizer) {
    return Qwen3TextEncoder(tokenizer, encoder_, own, {}, statistics)
        .encode({{.text = "a"}}, 16)
        .at(0)
        .at(kTokens);
  };
  const at::Tensor left = states(tokenizer_), right = states(folder.path());
  EXPECT_TRUE(at::equal(left.narrow(0, 12, 4), right.narrow(0, 0, 4)));
  EXPECT_TRUE(at::equal(left.narrow(0, 0, 12), right.narrow(0, 4, 12)));
}

}  // namespace
}  // namespace tessera::models
