#include "text/t5_tokenizer.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "tests/support/golden.h"
#include "tests/support/tokenizer_folder.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

constexpr int64_t kNoLimit = 1'000'000;

class T5TokenizerGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(T5TokenizerGolden, GivesTheIdsOfTransformers) {
  const T5Tokenizer tokenizer(golden_folder(GetParam()));
  const Json lines = read_json(golden_folder(GetParam()) / "lines.json");
  EXPECT_GE(lines.size(), 150U);
  for (const Json& line : lines) {
    const auto text = line["text"].get<std::string>();
    EXPECT_EQ(tokenizer.encode(text, kNoLimit), line["ids"].get<std::vector<int64_t>>()) << text;
    EXPECT_EQ(lower_and_strip(text), line["cleaned"].get<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, T5TokenizerGolden, ::testing::Values("t5_tokenizer", "t5_tokenizer_json"));

TEST(T5Tokenizer, CutsBeforeTheEndMarkAndSaysHowManyTokens) {
  const T5Tokenizer tokenizer(golden_folder("t5_tokenizer"));
  std::vector<std::string> warnings;
  const LogSink before =
      set_log_sink([&](LogLevel, const std::string& message) { warnings.push_back(message); });
  const std::string text = "a red circle above a blue square";
  const std::vector<int64_t> whole = tokenizer.encode(text, kNoLimit);
  const auto length = static_cast<int64_t>(whole.size());
  ASSERT_GE(length, 8);
  EXPECT_EQ(whole.back(), 1);
  EXPECT_EQ(tokenizer.encode(text, length), whole);
  EXPECT_TRUE(warnings.empty());

  std::vector<int64_t> expected(whole.begin(), whole.end() - 4);
  expected.push_back(1);
  EXPECT_EQ(tokenizer.encode(text, length - 3), expected);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("its last 3 tokens are cut"), std::string::npos) << warnings[0];
  EXPECT_EQ(tokenizer.encode(text, 1), std::vector<int64_t>{1});
  set_log_sink(before);
}

// SentencePiece's rules nmt_nfkc say so.
TEST(T5Tokenizer, RemovesControlCharacters) {
  const T5Tokenizer tokenizer(golden_folder("t5_tokenizer"));
  const std::vector<int64_t> expected = tokenizer.encode("a redcat", kNoLimit);
  for (const char control : std::string("\x01\x02\x08\x0b\x0e\x1f\x7f"))
    EXPECT_EQ(tokenizer.encode(std::string("a red") + control + "cat", kNoLimit), expected) << int{control};
}

TEST(T5Tokenizer, CountsTheSentinels) {
  EXPECT_EQ(T5Tokenizer(golden_folder("t5_tokenizer")).vocabulary_size(), 800);
  EXPECT_EQ(T5Tokenizer(golden_folder("t5_tokenizer_json")).vocabulary_size(), 700);
}

class T5TokenizerFolder : public TokenizerFolder {
 protected:
  // Writes a tokenizer.json whose charsmap is `charsmap` in base64.
  void write_json(const std::string& charsmap) {
    write("tokenizer.json",
          R"({"model":{"type":"Unigram","vocab":[["<pad>",0],["</s>",0],["<unk>",0],["a",-1]]},)"
          R"("normalizer":{"type":"Precompiled","precompiled_charsmap":")" +
              charsmap + R"("}})");
  }
  std::string refusal() {
    return refusal_of([](const std::filesystem::path& folder) { const T5Tokenizer tokenizer(folder); });
  }
  void expect_refusal(const std::string& part) {
    const std::string message = refusal();
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
};

TEST_F(T5TokenizerFolder, RefusesACutSentencePieceModel) {
  const std::string model = read_file(golden_folder("t5_tokenizer") / "spiece.model", 1 << 20);
  for (size_t size = 0; size < model.size(); size += size < 400 ? 1 : 4099) {
    write("spiece.model", std::string_view(model).substr(0, size));
    EXPECT_EQ(refusal(), fmt::format("[{}] not a SentencePiece model, or a damaged one",
                                     (folder_ / "spiece.model").string()))
        << size;
  }
  write("spiece.model", model);
  EXPECT_EQ(refusal(), "accepted");
}

TEST_F(T5TokenizerFolder, RefusesADamagedSentencePieceModel) {
  const std::string model = read_file(golden_folder("t5_tokenizer") / "spiece.model", 1 << 20);
  for (size_t position = 0; position < model.size(); position += 4001) {
    std::string damaged = model;
    damaged[position] = static_cast<char>(damaged[position] ^ 0xff);
    write("spiece.model", damaged);
    try {  // damage that leaves the form valid must not cause memory errors
      T5Tokenizer(folder_).encode("a photo ﬁ ①\uff45\u0301", kNoLimit);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 3);
    }
  }
}

TEST_F(T5TokenizerFolder, RefusesOtherTokenizers) {
  EXPECT_NE(refusal().find("neither spiece.model nor tokenizer.json"), std::string::npos);
  write("tokenizer.json", R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]}})");
  expect_refusal("a tokenizer of type BPE; a T5 tokenizer has the type Unigram");
  write("tokenizer.json", R"({"model":{"type":"Unigram","vocab":[["a",0],["b"]]}})");
  expect_refusal("'vocab' row 1 must be [piece, score]");
  write("tokenizer.json", R"({"model":{"type":"Unigram","vocab":[["a",0]]}})");
  expect_refusal("has 1 piece, but");
  write("tokenizer.json", R"({"version":"1.0"})");
  expect_refusal("'model' must be an object");
  write("tokenizer.json", R"({"model":)");
  expect_refusal("tokenizer.json");
}

TEST_F(T5TokenizerFolder, RefusesDamagedNormalisationRules) {
  write_json("!!!!");
  expect_refusal("not base64");
  write_json("AAAA");
  expect_refusal("character map is damaged");
  write_json("BAAAAAAA");  // declares 4 bytes of trie but has 2
  expect_refusal("character map is damaged");
  write_json("BAAAAAAAAAA=");  // a trie of one unit
  EXPECT_EQ(refusal(), "accepted");
  EXPECT_EQ(T5Tokenizer(folder_).encode("b", kNoLimit), (std::vector<int64_t>{2, 1}));
}

// Newer files list several normalisers, one of which holds the rules.
TEST_F(T5TokenizerFolder, FindsTheRulesInASequence) {
  const std::filesystem::path golden = golden_folder("t5_tokenizer_json");
  Json document = read_json(golden / "tokenizer.json");
  document["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json::array({document["normalizer"]})}};
  write("tokenizer.json", document.dump());
  std::filesystem::copy_file(golden / "tokenizer_config.json", folder_ / "tokenizer_config.json");
  const T5Tokenizer tokenizer(folder_);
  for (const Json& line : read_json(golden / "lines.json")) {
    const auto text = line["text"].get<std::string>();
    EXPECT_EQ(tokenizer.encode(text, kNoLimit), line["ids"].get<std::vector<int64_t>>()) << text;
  }
}

TEST_F(T5TokenizerFolder, RefusesConfigsOfTheWrongShape) {
  write_json("BAAAAAAAAAA=");
  write("tokenizer_config.json", R"({"extra_ids":-1})");
  expect_refusal("'extra_ids'");
  write("tokenizer_config.json", R"({"added_tokens_decoder":{"x":{"content":"a"}}})");
  expect_refusal("'added_tokens_decoder'");
  write("tokenizer_config.json", R"({"added_tokens_decoder":{"5":{"content":"a","single_word":7}}})");
  expect_refusal("'single_word' must be true or false");
  write("tokenizer_config.json", R"({"added_tokens_decoder":{"5":7}})");
  expect_refusal("tokenizer_config.json");
}

// Of the two lists of further tokens one counts, and where it does, sentinels are text.
TEST_F(T5TokenizerFolder, TakesTheListThatTransformersTakes) {
  write_json("BAAAAAAAAAA=");  // pieces: 3 is "a"
  using Ids = std::vector<int64_t>;
  const std::string unknown = R"({"extra_ids":1})";
  write("tokenizer_config.json", unknown);
  const auto encode = [&](const char* text) { return T5Tokenizer(folder_).encode(text, kNoLimit); };
  EXPECT_EQ(encode("<extra_id_0>"), (Ids{4, 1}));
  write("tokenizer_config.json", R"({"extra_ids":1,"additional_special_tokens":["<y>"]})");
  EXPECT_EQ(encode("<y>"), (Ids{4, 1}));
  EXPECT_EQ(encode("<extra_id_0>").back(), 1);
  EXPECT_NE(encode("<extra_id_0>"), (Ids{5, 1}));
  write("tokenizer_config.json",
        R"({"extra_ids":1,"extra_special_tokens":["<x>"],"additional_special_tokens":["<y>"]})");
  EXPECT_EQ(encode("<x>"), (Ids{4, 1}));
  EXPECT_NE(encode("<y>"), (Ids{5, 1}));
  EXPECT_EQ(T5Tokenizer(folder_).vocabulary_size(), 5);
  write("tokenizer_config.json",
        R"({"extra_ids":1,"extra_special_tokens":[],"additional_special_tokens":["<y>"]})");
  EXPECT_EQ(encode("<y>"), (Ids{4, 1}));
  write("tokenizer_config.json", R"({"extra_ids":1})");
  write("special_tokens_map.json", R"({"additional_special_tokens":["<y>"]})");
  EXPECT_EQ(encode("<y><extra_id_0>"), (Ids{4, 5, 1}));
}

TEST_F(T5TokenizerFolder, TakesTokensWithNames) {
  write_json("BAAAAAAAAAA=");
  using Ids = std::vector<int64_t>;
  for (const char* key : {"extra_special_tokens", "model_specific_special_tokens"}) {
    write("tokenizer_config.json", fmt::format(R"({{"extra_ids":1,"{}":{{"image_token":"<x>"}}}})", key));
    EXPECT_EQ(T5Tokenizer(folder_).encode("<x>", kNoLimit), (Ids{4, 1})) << key;
  }
  // A list beside them is ignored, but for that of the sentinels.
  write("tokenizer_config.json",
        R"({"extra_ids":1,"extra_special_tokens":{"a":"<x>"},"additional_special_tokens":["<extra_id_0>"]})");
  EXPECT_EQ(T5Tokenizer(folder_).encode("<x>", kNoLimit), (Ids{4, 1}));
  write("tokenizer_config.json",
        R"({"extra_ids":1,"extra_special_tokens":{"a":"<x>"},"additional_special_tokens":["<y>"]})");
  expect_refusal(
      "'additional_special_tokens' is [\"<y>\"]: transformers ignores this list where extra_special_tokens "
      "has names");
}

TEST_F(T5TokenizerFolder, CutsAtTheSideThatAFileNames) {
  write_json("BAAAAAAAAAA=");
  write("tokenizer_config.json", R"({"truncation_side":"left","additional_special_tokens":["<x>","<y>"]})");
  EXPECT_EQ(T5Tokenizer(folder_).encode("<x><y><y>", 3), (std::vector<int64_t>{5, 5, 1}));
  EXPECT_EQ(T5Tokenizer(folder_).encode("<x><y><x>", 2), (std::vector<int64_t>{4, 1}));
  write("tokenizer_config.json", R"({"truncation_side":"both"})");
  expect_refusal("'truncation_side' must be left or right");
}

TEST_F(T5TokenizerFolder, EndsInTheMarkThatAFileNames) {
  write_json("BAAAAAAAAAA=");
  write("tokenizer_config.json", R"({"eos_token":"<e>","additional_special_tokens":["<x>","<e>"]})");
  const std::vector<int64_t> ids = T5Tokenizer(folder_).encode("<x>", 3);
  ASSERT_EQ(ids.size(), 2U);
  EXPECT_EQ(ids.front(), T5Tokenizer(folder_).encode("<x><e>", 9).front());
  EXPECT_EQ(ids.back(), T5Tokenizer(folder_).encode("<e>", 9).front());
  EXPECT_NE(ids.back(), 1);
}

TEST(T5TokenizerText, MustBeUtf8) {
  EXPECT_THROW(T5Tokenizer(golden_folder("t5_tokenizer")).encode("a\xff", 9), Error);
}

}  // namespace
}  // namespace tessera::text
