#include "text/regex.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

std::vector<std::string> matches(const Regex& regex, const std::string& text) {
  std::vector<std::string> result;
  for (const Regex::Match& match : regex.find_all(text))
    result.push_back(text.substr(match.begin, match.end - match.begin));
  return result;
}

std::vector<std::string> matches(const char* pattern, const std::string& text) {
  return matches(Regex(pattern, "file"), text);
}

using Strings = std::vector<std::string>;

TEST(Regex, FindsWhatOnigurumaFinds) {
  EXPECT_EQ(matches(R"([\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+)", "Ab\u00e912 \u0663!?\u0301 x"),
            (Strings{"Ab\u00e9", "1", "2", "\u0663", "!?\u0301", "x"}));
  EXPECT_EQ(matches(R"((?i:'s|'ll)|\p{L}+)", "'S 'lL 'l'\u017f"), (Strings{"'S", "'lL", "l", "'\u017f"}));
  EXPECT_EQ(matches(R"(\s+(?!\S)|\s+)", "a   b  "), (Strings{"  ", " ", "  "}));
  EXPECT_EQ(matches(R"(\p{N}{1,3})", "12345"), (Strings{"123", "45"}));
  EXPECT_EQ(matches(R"([^a-c\-\]]+|[+-])", "abc-d]+"), (Strings{"-", "d", "+"}));
  EXPECT_EQ(matches(R"(\P{L}|[\P{N}])", "a1"), (Strings{"a", "1"}));
  EXPECT_EQ(matches("#|&", "a#&"), (Strings{"#", "&"}));
  // These are white space that other definitions leave out, and characters that are none.
  EXPECT_EQ(matches(R"(\s)", "\t\v\u0085\u00a0\u1680\u2028\u3000").size(), 7U);
  EXPECT_EQ(matches(R"(\S)", "\x1c\u180e\u200b\ufeff").size(), 4U);
}

TEST(Regex, EmptyMatchesDoNotFollowOthers) {
  EXPECT_EQ(matches("b*", "abba"), (Strings{"", "bb", ""}));
  EXPECT_EQ(matches("(?=a)", "aab"), (Strings{"", ""}));
}

TEST(Regex, TakesTextsLiterally) {
  EXPECT_EQ(matches(Regex::of_text("a.[\n \u00e9", "file"), "a.[\n \u00e9ab[\n \u00e9"),
            Strings{"a.[\n \u00e9"});
  EXPECT_THROW(Regex::of_text("", "file"), Error);
}

TEST(Regex, RefusesWhatItDoesNotKnow) {
  const auto refusal = [](const std::string& pattern) -> std::string {
    try {
      const Regex regex(pattern, "file");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal(R"(a\h)"), R"([file] the pattern 'a\h' has '\h' at byte 1, which is not supported)");
  EXPECT_EQ(refusal(R"([a\p{Nd}])"),
            R"([file] the pattern '[a\p{Nd}]' has '\p{Nd}' at byte 2, which is not supported)");
  for (const char* pattern : {".",       "^a",       "a$", "(?<x>a)", "(?m:a)", "a{,3}", "a{2}?",  "a{2",
                              "a{}",     "a{1,2,3}", "[]", "[^]a]",   "[a",     "[[a]]", "[a&&b]", "[\\s-a]",
                              "[a-\\s]", "[-a-",     "\\", "\\x{41}", "\\1",    "\\p",   "\\p{",   "\\pL"}) {
    EXPECT_NE(refusal(pattern).find("which is not supported"), std::string::npos)
        << pattern << refusal(pattern);
  }
  for (const char* pattern : {"(a", "a)", "*", "a**b(", "[b-a]"}) {
    EXPECT_NE(refusal(pattern).find("is not valid"), std::string::npos) << pattern << refusal(pattern);
  }
  EXPECT_EQ(refusal(""), "[file] an empty pattern");
}

TEST(Regex, GivesUpPatternsThatTakeForever) {
  const Regex regex("(a+)+b", "file");
  EXPECT_EQ(matches(regex, "aab"), Strings{"aab"});
  EXPECT_THROW(regex.find_all(std::string(64, 'a')), Error);
}

TEST(Regex, FindsInLongTexts) {
  const Regex regex(R"(\p{L}+|\s+(?!\S)|\s+)", "file");
  EXPECT_EQ(regex.find_all(std::string(1 << 20, 'a')).size(), 1U);
  EXPECT_EQ(regex.find_all(std::string(1 << 20, ' ') + "a").size(), 3U);
}

TEST(UnicodeVersions, AreThoseOfTheTokenizersParts) {
  // Letters and digits of Unicode 15.1 and 16 count, but not those that 17 added.
  EXPECT_EQ(matches(R"(\p{L}+)", "a\U0002ebf0\U00010d4a\U00016ea0"), Strings{"a\U0002ebf0\U00010d4a"});
  EXPECT_EQ(matches(R"(\p{N}+)", "\U0001ccf0"), Strings{"\U0001ccf0"});
  EXPECT_EQ(matches(R"(\p{M}+)", "\u0301\u0897"), Strings{"\u0301\u0897"});
  EXPECT_EQ(matches(R"([\p{Lu}\p{Lt}]+)", "a\u1c89\u01c5\u1c8a\ua7ce"), Strings{"\u1c89\u01c5"});
  EXPECT_EQ(matches(R"([\p{Ll}\p{Lm}]+)", "A\u1c8a\U00010d4e\u1c89"), Strings{"\u1c8a\U00010d4e"});
  EXPECT_EQ(matches(R"([^\p{Lo}]+)", "\U00010d4aa\U0002ebf0A\U00016ea0"), (Strings{"a", "A\U00016ea0"}));
  EXPECT_EQ(to_lower_case("A\u0130\u03a3 \u1c89\ua7cb\ua7cc\ua7cd\U00010d50\U00016ea0\U0001f600"),
            "ai\u0307\u03c3 \u1c8a\u0264\ua7cd\ua7cd\U00010d70\U00016ebb\U0001f600");
  EXPECT_EQ(to_nfc("e\u0301 \u1112\u1161\u11ab \u212b \u0344"), "\u00e9 \ud55c \u00c5 \u0308\u0301");
  // Unicode 13 composes these, and Unicode 7 ordered the other marks.
  EXPECT_EQ(to_nfc("\U00011935\U00011930"), "\U00011935\U00011930");
  EXPECT_EQ(to_nfc("a\u0301\u1ab0\u0316"), "\u00e1\u0316\u1ab0");
}

}  // namespace
}  // namespace tessera::text
