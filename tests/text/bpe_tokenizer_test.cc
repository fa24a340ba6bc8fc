#include "text/bpe_tokenizer.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/json.h"
#include "core/log.h"
#include "tests/support/golden.h"
#include "tests/support/tokenizer_folder.h"

namespace tessera::text {
namespace {

using Ids = std::vector<int64_t>;

constexpr int64_t kNoLimit = 1'000'000;

class BpeTokenizerGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(BpeTokenizerGolden, GivesTheIdsOfTransformers) {
  const BpeTokenizer tokenizer(golden_folder(GetParam()));
  const Json lines = read_json(golden_folder(GetParam()) / "lines.json");
  EXPECT_GE(lines.size(), 60U);
  for (const Json& line : lines) {
    const auto text = line["text"].get<std::string>();
    EXPECT_EQ(tokenizer.encode(text, kNoLimit), line["ids"].get<Ids>()) << text;
    if (line.contains("padded")) {
      EXPECT_EQ(tokenizer.encode_padded(text, tokenizer.model_max_length()), line["padded"].get<Ids>())
          << text;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, BpeTokenizerGolden,
                         ::testing::Values("clip_tokenizer", "clip_tokenizer_json", "qwen2_tokenizer",
                                           "llama3_tokenizer"));

TEST(BpeTokenizer, CutsBeforeTheEndMarkAndSaysHowManyTokens) {
  const BpeTokenizer tokenizer(golden_folder("clip_tokenizer"));
  std::vector<std::string> warnings;
  const ScopedLogSink sink([&](LogLevel, const std::string& message) { warnings.push_back(message); });
  const std::string text = "a red circle above a blue square";
  const Ids whole = tokenizer.encode(text, kNoLimit);
  const auto length = static_cast<int64_t>(whole.size());
  ASSERT_GE(length, 8);
  EXPECT_EQ(whole.front(), tokenizer.vocabulary_size() - 2);
  EXPECT_EQ(whole.back(), tokenizer.vocabulary_size() - 1);
  EXPECT_EQ(tokenizer.encode(text, length), whole);
  EXPECT_TRUE(warnings.empty());

  Ids expected(whole.begin(), whole.end() - 4);
  expected.push_back(whole.back());
  EXPECT_EQ(tokenizer.encode(text, length - 3), expected);
  EXPECT_EQ(tokenizer.encode_padded(text, length - 3), expected);
  ASSERT_EQ(warnings.size(), 2U);
  EXPECT_NE(warnings[0].find("its last 3 tokens are cut"), std::string::npos) << warnings[0];
  EXPECT_EQ(tokenizer.encode(text, 2), (Ids{whole.front(), whole.back()}));
}

TEST(BpeTokenizer, PadsWithTheTokenThatTheFilesName) {
  const auto padded = [](const char* folder) {
    return BpeTokenizer(golden_folder(folder)).encode_padded("", 4);
  };
  const Ids first = padded("clip_tokenizer");
  EXPECT_EQ(first[3], first[1]);  // EOS
  EXPECT_EQ(padded("clip_tokenizer_json")[3], 0);
  const BpeTokenizer llama(golden_folder("llama3_tokenizer"));
  EXPECT_FALSE(llama.pad_id());
  EXPECT_THROW(llama.encode_padded("", 4), Error);
}

TEST(BpeTokenizer, TextMustBeUtf8) {
  EXPECT_THROW(BpeTokenizer(golden_folder("clip_tokenizer")).encode("a\xff", 9), Error);
}

class BpeTokenizerFolder : public TokenizerFolder {
 protected:
  void expect_refusal(const std::string& part, const std::string& tokenizer_class = {}) {
    const std::string message = refusal_of(
        [&](const std::filesystem::path& folder) { const BpeTokenizer tokenizer(folder, tokenizer_class); });
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  // Writes a CLIP folder of few tokens.
  void write_clip() {
    write("vocab.json",
          R"({"a":0,"a</w>":1,"b</w>":2,"ab</w>":3,"<|startoftext|>":4,"<|endoftext|>":5,"!":6})");
    write("merges.txt", "#version: 0.2\na b</w>\n");
  }
  // Writes a tokenizer.json with `rest` beside the model.
  void write_json(const std::string& rest,
                  const std::string& model = R"("vocab":{"a":0,"b":1},"merges":[])") {
    write("tokenizer.json", R"({"model":{"type":"BPE",)" + model + "}" + rest + "}");
  }
  Ids encode(const std::string& text, const std::string& tokenizer_class = {}) {
    return BpeTokenizer(folder_, tokenizer_class).encode(text, kNoLimit);
  }
};

TEST_F(BpeTokenizerFolder, TheClassMayStandInTheConfigOrBeAskedFor) {
  write_clip();
  expect_refusal("there is no tokenizer.json, which tokenizers of class '' need");
  expect_refusal("which tokenizers of class 'GPT2Tokenizer' need", "GPT2Tokenizer");
  EXPECT_EQ(encode("ab a x", "CLIPTokenizer"), (Ids{4, 3, 1, 5, 5}));
  EXPECT_EQ(encode("ab", "CLIPTokenizerFast"), (Ids{4, 3, 5}));
  EXPECT_EQ(BpeTokenizer(folder_, "CLIPTokenizer").pad_id(), 5);
  EXPECT_GT(BpeTokenizer(folder_, "CLIPTokenizer").model_max_length(), kNoLimit);
  write("tokenizer_config.json",
        R"({"tokenizer_class":"CLIPTokenizer","model_max_length":77,"pad_token":"!"})");
  EXPECT_EQ(encode("ab! !"), (Ids{4, 3, 6, 6, 5}));
  EXPECT_EQ(BpeTokenizer(folder_).pad_id(), 6);
  EXPECT_EQ(BpeTokenizer(folder_).model_max_length(), 77);
  write("tokenizer_config.json", R"({"tokenizer_class":"CLIPTokenizer","model_max_length":1})");
  EXPECT_EQ(BpeTokenizer(folder_).model_max_length(), 1);
}

TEST_F(BpeTokenizerFolder, OlderFilesCountWhereTheConfigListsNoTokens) {
  write_clip();
  write("tokenizer_config.json", R"({"tokenizer_class":"CLIPTokenizer"})");
  write("special_tokens_map.json",
        R"({"pad_token":"!","eos_token":{"content":"<|endoftext|>","normalized":true},)"
        R"("unk_token":{"content":"<|endoftext|>","normalized":true}})");
  write("added_tokens.json", R"({"Cat":7,"<|startoftext|>":4})");
  EXPECT_EQ(encode("a! CAT <|ENDOFTEXT|>"), (Ids{4, 1, 6, 7, 5, 5}));
  EXPECT_EQ(BpeTokenizer(folder_).vocabulary_size(), 8);
  // Of two definitions of a token the last counts: it is looked for in the raw text.
  write("special_tokens_map.json", R"({"eos_token":{"content":"<|endoftext|>","normalized":true}})");
  EXPECT_EQ(encode("<|ENDOFTEXT|>").size(), 2 + std::string("<|ENDOFTEXT|>").size());
  EXPECT_EQ(encode("<|endoftext|>"), (Ids{4, 5, 5}));
  write("tokenizer_config.json", R"({"tokenizer_class":"CLIPTokenizer","added_tokens_decoder":{}})");
  EXPECT_EQ(encode("a!"), (Ids{4, 1, 5, 5}));
  EXPECT_EQ(BpeTokenizer(folder_).vocabulary_size(), 7);
}

TEST_F(BpeTokenizerFolder, RefusesFoldersThatLackSomething) {
  expect_refusal("no tokenizer.json");
  expect_refusal("vocab.json", "CLIPTokenizer");
  write_clip();
  std::filesystem::remove(folder_ / "merges.txt");
  expect_refusal("merges.txt", "CLIPTokenizer");
  std::filesystem::remove_all(folder_);
  expect_refusal("no such folder");
}

TEST_F(BpeTokenizerFolder, NamesFileAndPlaceOfDamage) {
  write_clip();
  write("merges.txt", "#version: 0.2\na b</w>\nab</w>\n");
  expect_refusal((folder_ / "merges.txt").string() + "] line 3", "CLIPTokenizer");
  write("merges.txt", "a c</w>\n");
  expect_refusal("merge 1, 'a c</w>': 'c</w>' is not in the vocabulary", "CLIPTokenizer");
  write_clip();
  write("vocab.json", R"({"a":0,"b":0})");
  expect_refusal((folder_ / "vocab.json").string() + "] two tokens have the id 0", "CLIPTokenizer");
  write("vocab.json", R"({"a":0,"a</w>":1,"b</w>":2,"ab</w>":3})");
  expect_refusal("the unknown token '<|endoftext|>' is not in the vocabulary", "CLIPTokenizer");
}

TEST_F(BpeTokenizerFolder, TakesATokenizerJsonByItsWord) {
  write_json("");
  EXPECT_EQ(encode("abxa"), (Ids{0, 1, 0}));
  write_json(
      R"(,"normalizer":{"type":"Lowercase"},"added_tokens":[{"id":2,"content":"X","normalized":true}])");
  EXPECT_EQ(encode("AxB"), (Ids{0, 2, 1}));
  write_json(R"(,"post_processor":{"type":"BertProcessing","sep":["b",1],"cls":["a",0]})");
  EXPECT_EQ(encode("b"), (Ids{0, 1, 1}));
  write_json(R"(,"post_processor":{"type":"BertProcessing","sep":["b",2],"cls":["a",0]})");
  expect_refusal("the post_processor has the id 2; ids end at 1");
}

TEST_F(BpeTokenizerFolder, RefusesOtherTokenizers) {
  write("tokenizer.json", R"({"model":{"type":"Unigram","vocab":[["a",0]]}})");
  expect_refusal("a tokenizer of type Unigram; BPE is needed");
  write("tokenizer.json", R"({"version":"1.0"})");
  expect_refusal("'model' must be an object");
  write("tokenizer.json", R"({"model":)");
  expect_refusal("tokenizer.json");
  for (const char* option : {"byte_fallback", "dropout", "continuing_subword_prefix"}) {
    const std::string value = option == std::string("byte_fallback") ? "true"
                              : option == std::string("dropout")     ? "0.5"
                                                                     : "\"#\"";
    write_json("", fmt::format(R"("{}":{},"vocab":{{"a":0}},"merges":[])", option, value));
    expect_refusal(fmt::format("'{}' must be", option));
  }
  write("tokenizer.json", R"({"model":5})");
  expect_refusal("'model' must be an object, got 5");
  write_json("", R"("merges":[])");
  expect_refusal("the vocabulary must be an object");
  write_json("", R"("vocab":{"a":0})");
  expect_refusal("'merges' must be an array");
  write_json(R"(,"pre_tokenizer":{"type":"Metaspace"})");
  expect_refusal("tokenizer.json, pre_tokenizer] the type 'Metaspace' is not supported");
}

TEST_F(BpeTokenizerFolder, RefusesConfigsThatChangeWhatItDoes) {
  write_json("");
  for (const auto& [config, part] :
       {std::pair<const char*, const char*>{R"({"split_special_tokens":true})",
                                            "'split_special_tokens' must be false"},
        {R"({"truncation_side":"middle"})", "'truncation_side' must be left or right"},
        {R"({"model_max_length":0})", "'model_max_length' must be"},
        {R"({"model_max_length":"77"})", "'model_max_length' must be"},
        {R"({"padding_side":"middle"})", "'padding_side' must be left or right"},
        {R"({"eos_token":7})", "a token must be a string or an object, got 7"},
        {R"({"eos_token":{"content":"a","lstrip":1}})", "'lstrip' must be true or false"},
        {R"({"added_tokens_decoder":{"x":{"content":"a"}}})", "'added_tokens_decoder'"},
        {R"({"pad_token":""})", "the special token '' is not among the added tokens"}}) {
    write("tokenizer_config.json", config);
    expect_refusal(part);
  }
  write("tokenizer_config.json", R"({"model_max_length":1e30,"padding_side":"left","pad_token":"b"})");
  EXPECT_EQ(BpeTokenizer(folder_).encode_padded("a", 3), (Ids{1, 1, 0}));
}

TEST_F(BpeTokenizerFolder, WritesOutAllVectorsOfATextualInversion) {
  write_clip();
  const auto spelled = [&](const std::string& text) {
    return BpeTokenizer(folder_, "CLIPTokenizer").with_all_vectors(text);
  };
  EXPECT_EQ(spelled("a <x>"), "a <x>");
  write("added_tokens.json", R"({"<x>":7,"<x>_1":8,"<x>_2":9,"<x>_4":10,"<y>":11})");
  EXPECT_EQ(spelled("a <x> b <x>"), "a <x> <x>_1 <x>_2 b <x> <x>_1 <x>_2");
  EXPECT_EQ(spelled("<y> a <x>_1"), "<y> a <x>_1");  // one vector, and one that is named alone
  EXPECT_EQ(spelled("<x> <x>_1"), "<x> <x>_1 <x>_2 <x> <x>_1 <x>_2_1");
  EXPECT_EQ(spelled("<X>"), "<X>");  // is the token, but the text has other letters
  EXPECT_EQ(encode(spelled("a <x> b"), "CLIPTokenizer"), (Ids{4, 1, 7, 8, 9, 2, 5}));
  std::filesystem::remove(folder_ / "added_tokens.json");
  const std::string token = R"({"content":"<x>)", rest = R"(","normalized":true,"special":false})";
  write("tokenizer_config.json",
        R"({"added_tokens_decoder":{"7":)" + token + rest + R"(,"8":)" + token + "_1" + rest + "}}");
  EXPECT_EQ(spelled("a <x>"), "a <x> <x>_1");
}

TEST_F(BpeTokenizerFolder, CutsAtTheSideThatAFileNames) {
  write_json("");
  const auto cut = [&] { return BpeTokenizer(folder_).encode("aab", 2); };
  EXPECT_EQ(cut(), (Ids{0, 0}));
  write("tokenizer_config.json", R"({"truncation_side":"left"})");
  std::vector<std::string> warnings;
  const ScopedLogSink sink([&](LogLevel, const std::string& message) { warnings.push_back(message); });
  EXPECT_EQ(cut(), (Ids{0, 1}));
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_EQ(warnings[0], fmt::format("[{}] the prompt 'aab' is too long: its first token is cut, 2 remain",
                                     folder_.filename().string()));
  write("tokenizer_config.json", "{}");
  write_json(R"(,"truncation":{"direction":"Left","max_length":9,"strategy":"LongestFirst","stride":0})");
  EXPECT_EQ(cut(), (Ids{0, 1}));
}

TEST_F(BpeTokenizerFolder, NullIsNoDefault) {
  write_clip();
  write("tokenizer_config.json", R"({"tokenizer_class":"CLIPTokenizer","pad_token":null})");
  EXPECT_FALSE(BpeTokenizer(folder_).pad_id());
  write("tokenizer_config.json", R"({"tokenizer_class":"CLIPTokenizer","bos_token":null})");
  expect_refusal("'bos_token' must be a token, got null");
}

TEST_F(BpeTokenizerFolder, NewTokensNeedFreeIds) {
  write_json(R"(,"added_tokens":[{"id":2,"content":"<x>","special":true}])",
             R"("vocab":{"a":0,"b":2},"merges":[])");
  expect_refusal("'<x>' would get the id 2, which another token has");
}

}  // namespace
}  // namespace tessera::text
