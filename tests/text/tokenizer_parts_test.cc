#include "text/tokenizer_parts.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/support/golden.h"

namespace tessera::text {
namespace {

using Strings = std::vector<std::string>;
using Ids = std::vector<int64_t>;

std::string normalize(const std::string& description, std::string_view text) {
  return Normalizer(parse_json(description, "file"), "file").normalize(text);
}

Strings split(const std::string& description, std::string_view text) {
  return PreTokenizer(parse_json(description, "file"), "file").split(text);
}

SurroundingIds surrounding(const std::string& description) {
  return parse_post_processor(parse_json(description, "file"), "file");
}

template <typename Parse>
void expect_refusal(Parse&& parse, const std::string& part) {
  try {
    parse();
    ADD_FAILURE() << "accepted, without " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Normalizer, WorksInTheGivenOrder) {
  EXPECT_EQ(normalize("null", "A\u0301"), "A\u0301");
  EXPECT_EQ(normalize(R"({"type":"NFC"})", "A\u0301"), "\u00c1");
  EXPECT_EQ(normalize(R"({"type":"Lowercase"})", "A\u0301 \u03a3"), "a\u0301 \u03c3");
  EXPECT_EQ(normalize(R"({"type":"Replace","pattern":{"Regex":"\\s+"},"content":"_"})", " a \t\u0085b\n"),
            "_a_b_");
  EXPECT_EQ(normalize(R"({"type":"Replace","pattern":{"String":"."},"content":""})", "a.b"), "ab");
  const std::string parts = R"({"type":"Lowercase"},{"type":"Sequence","normalizers":[{"type":"NFC"}]})";
  EXPECT_EQ(normalize(R"({"type":"Sequence","normalizers":[)" + parts + "]}", "A\u0301"), "\u00e1");
}

TEST(Normalizer, RefusesWhatItDoesNotKnow) {
  expect_refusal([] { normalize(R"({"type":"NFKC"})", ""); }, "[file] the type 'NFKC' is not supported");
  expect_refusal([] { normalize("7", ""); }, "expected a JSON object");
  expect_refusal([] { normalize("{}", ""); }, "'type' must be a string");
  expect_refusal([] { normalize(R"({"type":"Sequence"})", ""); }, "'normalizers' must be an array");
  expect_refusal([] { normalize(R"({"type":"Replace","content":""})", ""); }, "'pattern' must be an object");
  expect_refusal([] { normalize(R"({"type":"Replace","pattern":{},"content":""})", ""); }, "'Regex'");
  expect_refusal([] { normalize(R"({"type":"Replace","pattern":{"String":"a"}})", ""); }, "'content'");
}

// Pairs of letters of each category, in each order, and difficult texts.
TEST(PreTokenizer, SplitsAsTekkenVocabularies) {
  Json pattern = read_json(golden_folder("mistral_tokenizer") / "tokenizer.json");
  pattern = pattern.at("pre_tokenizer").at("pretokenizers").at(0);
  const PreTokenizer tekken(pattern, "file");
  const Json texts = read_json(golden_folder("mistral_tokenizer") / "pieces.json");
  EXPECT_GE(texts.size(), 400U);
  for (const Json& row : texts)
    EXPECT_EQ(tekken.split(row[0].get<std::string>()), row[1].get<Strings>()) << row[0];
}

// These are examples of Hugging Face's tokenizers.
TEST(PreTokenizer, DelimitsInEveryWay) {
  const auto split_at = [](const std::string& behavior, const std::string& invert, std::string_view text) {
    return split(R"({"type":"Split","pattern":{"String":"-"},"behavior":")" + behavior + R"(","invert":)" +
                     invert + "}",
                 text);
  };
  const std::string text = "the-final--countdown";
  EXPECT_EQ(split_at("Removed", "false", text), (Strings{"the", "final", "countdown"}));
  EXPECT_EQ(split_at("Isolated", "false", text), (Strings{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(split_at("MergedWithPrevious", "false", text), (Strings{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(split_at("MergedWithNext", "false", text), (Strings{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(split_at("Contiguous", "false", text), (Strings{"the", "-", "final", "--", "countdown"}));
  EXPECT_EQ(split_at("Removed", "true", text), (Strings{"-", "-", "-"}));
  EXPECT_EQ(split_at("MergedWithPrevious", "true", "-a-b"), (Strings{"-a", "-b"}));
  EXPECT_EQ(split_at("MergedWithNext", "true", "a--b"), (Strings{"a-", "-", "b"}));
  EXPECT_EQ(split_at("Isolated", "false", ""), Strings{});
}

TEST(PreTokenizer, MakesBytesCharacters) {
  EXPECT_EQ(split("null", "a b"), Strings{"a b"});
  EXPECT_EQ(split(R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false})", "a \u00e9"),
            Strings{"a\u0120\u00c3\u00a9"});
  EXPECT_EQ(split(R"({"type":"ByteLevel","add_prefix_space":false})", "it's  1st"),
            (Strings{"it", "'s", "\u0120", "\u01201", "st"}));
  const std::string parts =
      R"({"type":"Split","pattern":{"Regex":"\\d"},"behavior":"Isolated","invert":false},{"type":"ByteLevel"})";
  expect_refusal([&] { split(R"({"type":"Sequence","pretokenizers":[)" + parts + "]}", ""); },
                 R"(has '\d' at byte 0)");
}

TEST(ByteAlphabet, HasACharacterForEachByte) {
  EXPECT_EQ(to_byte_alphabet("a \n~\x7f"), "a\u0120\u010a~\u0121");
  EXPECT_EQ(to_byte_alphabet("\u00e9\u00ad"), "\u00c3\u00a9\u00c2\u0143");
  EXPECT_EQ(to_byte_alphabet(std::string_view("\0", 1)), "\u0100");
}

TEST(PreTokenizer, PutsASpaceBeforeEachPiece) {
  const std::string parts =
      R"({"type":"Split","pattern":{"String":"-"},"behavior":"Isolated","invert":false},)"
      R"({"type":"ByteLevel","add_prefix_space":true,"use_regex":false})";
  EXPECT_EQ(split(R"({"type":"Sequence","pretokenizers":[)" + parts + "]}", "a- b"),
            (Strings{"\u0120a", "\u0120-", "\u0120b"}));
}

TEST(PreTokenizer, RefusesWhatItDoesNotKnow) {
  expect_refusal([] { split(R"({"type":"Metaspace"})", ""); }, "the type 'Metaspace' is not supported");
  expect_refusal([] { split(R"({"type":"Split","pattern":{"String":"-"},"behavior":"Dropped"})", ""); },
                 "'behavior'");
  expect_refusal([] { split(R"({"type":"ByteLevel","use_regex":1})", ""); },
                 "'use_regex' must be true or false");
}

TEST(PostProcessor, SurroundsTheText) {
  EXPECT_TRUE(surrounding("null").before.empty());
  EXPECT_TRUE(surrounding(R"({"type":"ByteLevel"})").after.empty());
  const SurroundingIds roberta =
      surrounding(R"({"type":"RobertaProcessing","sep":["</s>",2],"cls":["<s>",0]})");
  EXPECT_EQ(roberta.before, Ids{0});
  EXPECT_EQ(roberta.after, Ids{2});
  const std::string inner =
      R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}},)"
      R"({"SpecialToken":{"id":"</s>"}}],"special_tokens":{"<s>":{"ids":[5,6]},"</s>":{"ids":[7]}}})";
  const SurroundingIds sequence = surrounding(R"({"type":"Sequence","processors":[)" + inner +
                                              R"(,{"type":"BertProcessing","sep":["x",9],"cls":["y",8]}]})");
  EXPECT_EQ(sequence.before, (Ids{8, 5, 6}));
  EXPECT_EQ(sequence.after, (Ids{7, 9}));
}

TEST(PostProcessor, RefusesWhatItDoesNotKnow) {
  expect_refusal([] { surrounding(R"({"type":"Other"})"); }, "the type 'Other' is not supported");
  expect_refusal([] { surrounding(R"({"type":"RobertaProcessing","sep":["</s>"]})"); }, "'cls'");
  const auto refuse_template = [](const std::string& rest, const std::string& part) {
    expect_refusal([&] { surrounding(R"({"type":"TemplateProcessing",)" + rest + "}"); }, part);
  };
  refuse_template(R"("single":7)", "'single' must be an array");
  refuse_template(R"("single":[])", "one Sequence 'A'");
  refuse_template(R"("single":[{"Sequence":{"id":"A"}},{"Sequence":{"id":"A"}}])", "one Sequence 'A'");
  refuse_template(R"("single":[{"Sequence":{"id":"B"}}])", "one Sequence 'A'");
  refuse_template(R"("single":[{"Other":{}}])", "SpecialToken and Sequence");
  refuse_template(R"("single":[{"SpecialToken":{"id":"x"}}])", "an object that has 'x'");
}

}  // namespace
}  // namespace tessera::text
