#include "text/bpe.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace tessera::text {
namespace {

std::vector<int64_t> encode(const Bpe& bpe, std::string_view word) {
  std::vector<int64_t> ids;
  bpe.encode(word, ids);
  return ids;
}

// Makes a vocabulary of a to d and the given merges, in their order.
Bpe make_bpe(const std::vector<Merge>& merges, BpeOptions options = {}) {
  TokenMap vocabulary{{"a", 0}, {"b", 1}, {"c", 2}, {"d", 3}, {"?", 4}};
  for (const Merge& merge : merges)
    vocabulary.emplace(merge.left + merge.right, static_cast<int64_t>(vocabulary.size()));
  return Bpe(std::move(vocabulary), merges, std::move(options), "file");
}

template <typename Parse>
std::string refusal(Parse&& parse) {
  try {
    parse();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    return error.what();
  }
  return "accepted";
}

TEST(Bpe, MergesTheFirstPairOfTraining) {
  const Bpe bpe = make_bpe({{"b", "c"}, {"a", "b"}, {"bc", "d"}});
  EXPECT_EQ(encode(bpe, ""), std::vector<int64_t>{});
  EXPECT_EQ(encode(bpe, "d"), std::vector<int64_t>{3});
  EXPECT_EQ(encode(bpe, "abc"), (std::vector<int64_t>{0, 5}));
  EXPECT_EQ(encode(bpe, "abab"), (std::vector<int64_t>{6, 6}));
  EXPECT_EQ(encode(bpe, "abcd"), (std::vector<int64_t>{0, 7}));
}

TEST(Bpe, MergesTheLeftmostOfEqualPairs) {
  const Bpe bpe = make_bpe({{"a", "a"}, {"aa", "a"}});
  EXPECT_EQ(encode(bpe, "aaa"), std::vector<int64_t>{6});
  EXPECT_EQ(encode(bpe, "aaaa"), (std::vector<int64_t>{5, 5}));
  EXPECT_EQ(encode(bpe, "aaaaa"), (std::vector<int64_t>{5, 6}));
}

TEST(Bpe, OfTwoMergesOfOnePairTheLaterCounts) {
  const Bpe bpe = make_bpe({{"a", "b"}, {"b", "c"}, {"a", "b"}});
  EXPECT_EQ(encode(bpe, "abc"), (std::vector<int64_t>{0, 6}));
}

TEST(Bpe, PutsTheSuffixOnTheLastCharacter) {
  const Bpe bpe = make_bpe({{"a", "b"}}, {.end_of_word_suffix = "b"});
  EXPECT_EQ(encode(bpe, "ba"), (std::vector<int64_t>{1, 5}));  // b and ab
  EXPECT_EQ(encode(bpe, "ab"), (std::vector<int64_t>{0}));     // bb is no token
  EXPECT_EQ(encode(bpe, "aab"), (std::vector<int64_t>{0, 0}));
}

TEST(Bpe, GivesUnknownCharactersTheirToken) {
  const std::string word = "x\u00e9a\U0001f600";
  EXPECT_EQ(encode(make_bpe({}), word), std::vector<int64_t>{0});
  EXPECT_EQ(encode(make_bpe({}, {.unknown_token = "?"}), word), (std::vector<int64_t>{4, 4, 0, 4}));
  EXPECT_EQ(encode(make_bpe({}, {.unknown_token = "?", .fuse_unknown = true}), word),
            (std::vector<int64_t>{4, 0, 4}));
}

TEST(Bpe, IgnoresMergesForWordsThatAreTokens) {
  const std::vector<Merge> merges = {{"b", "c"}, {"a", "b"}, {"ab", "c"}};
  EXPECT_EQ(encode(make_bpe(merges), "abc"), (std::vector<int64_t>{0, 5}));
  EXPECT_EQ(encode(make_bpe(merges, {.ignore_merges = true}), "abc"), std::vector<int64_t>{7});
}

TEST(Bpe, RefusesMergesOfWhatIsNotThere) {
  const auto merge_refusal = [](const Merge& merge) {
    return refusal([&] { Bpe(TokenMap{{"a", 0}, {"b", 1}}, {merge}, {}, "file"); });
  };
  EXPECT_EQ(merge_refusal({"a", "x"}), "[file] merge 1, 'a x': 'x' is not in the vocabulary");
  EXPECT_EQ(merge_refusal({"a", "b"}), "[file] merge 1, 'a b': 'ab' is not in the vocabulary");
  EXPECT_EQ(merge_refusal({"", "a"}), "[file] merge 1, ' a': '' is not in the vocabulary");
}

// This takes minutes if each merge scans the whole word.
TEST(Bpe, EncodesAWordOfAMegabyte) {
  const Bpe bpe = make_bpe({{"a", "a"}, {"aa", "aa"}, {"aaaa", "b"}, {"b", "a"}});
  std::string word;
  while (word.size() < 1 << 20) word += "aaaab";
  EXPECT_EQ(encode(bpe, word).size(), word.size() / 5);
}

std::string vocabulary_refusal(const std::string& json) {
  return refusal([&] { parse_vocabulary(parse_json(json, "file"), "file"); });
}

std::string lines_refusal(std::string_view lines) {
  return refusal([&] { parse_merge_lines(lines, "file"); });
}

std::string rows_refusal(const std::string& json) {
  return refusal([&] { parse_merge_rows(parse_json(json, "file"), "file"); });
}

TEST(BpeVocabulary, RefusesIdsThatCannotBe) {
  EXPECT_EQ(vocabulary_refusal(R"({"a":0,"b":2,"c":10003})"), "accepted");
  EXPECT_EQ(vocabulary_refusal(R"({"a":0,"b":1,"c":1})"), "[file] two tokens have the id 1; one is 'c'");
  EXPECT_EQ(vocabulary_refusal(R"({"a":0,"b":10002})"),
            "[file] no token has an id from 1 to 10001; 'b' is next");
  for (const char* id : {"-1", "1.5", "\"1\"", "null", "2147483648", "18446744073709551616"}) {
    EXPECT_EQ(vocabulary_refusal(fmt::format(R"({{"a":0,"b":{}}})", id)),
              "[file] the id of the token 'b' must be a number from 0 to 2147483647")
        << id;
  }
  for (const char* json : {"[]", "{}", "7", "null"}) {
    EXPECT_EQ(vocabulary_refusal(json), "[file] the vocabulary must be an object of tokens and their ids");
  }
}

TEST(BpeVocabulary, ReadsMergesInEveryForm) {
  const auto expect = [](const std::vector<Merge>& merges) {
    ASSERT_EQ(merges.size(), 2U);
    EXPECT_EQ(merges[0].left + "|" + merges[0].right, "a|b");
    EXPECT_EQ(merges[1].left + "|" + merges[1].right, "#|\u0120");
  };
  expect(parse_merge_lines("#version: 0.2\na b\n# \u0120\n", "file"));
  expect(parse_merge_lines("a b\r\n# \u0120", "file"));
  expect(parse_merge_rows(parse_json(R"(["#version: 0.2", "a b", "# \u0120"])", "file"), "file"));
  expect(parse_merge_rows(parse_json(R"([["a","b"], ["#","\u0120"]])", "file"), "file"));
  EXPECT_TRUE(parse_merge_lines("", "file").empty());
}

TEST(BpeVocabulary, RefusesDamagedMerges) {
  EXPECT_EQ(lines_refusal("#version: 0.2\na b\nab\n"),
            "[file] line 3 must be two tokens with a space between them");
  for (const char* line : {"a b c", "a", "", "a b ", "a\tb", "a \xff"}) {
    EXPECT_EQ(lines_refusal(std::string(line) + "\n"),
              "[file] line 1 must be two tokens with a space between them")
        << line;
  }
  for (const char* row :
       {"\"ab\"", "\"a b c\"", "7", "[\"a\"]", "[\"a\",7]", "[\"a\",\"b\",\"c\"]", "null"}) {
    EXPECT_EQ(rows_refusal(fmt::format("[\"a b\",{}]", row)),
              "[file] 'merges' row 1 must be \"a b\" or [\"a\", \"b\"]")
        << row;
  }
  EXPECT_EQ(rows_refusal("{}"), "[file] 'merges' must be an array");
}

}  // namespace
}  // namespace tessera::text
