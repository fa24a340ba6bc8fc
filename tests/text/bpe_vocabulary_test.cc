#include "text/bpe_vocabulary.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace tessera::text {
namespace {

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
