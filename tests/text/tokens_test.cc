#include "text/tokens.h"

#include <gtest/gtest.h>

namespace tessera::text {
namespace {

// Returns "(7)" for a token, and the text otherwise.
std::string split(const AddedTokens& tokens, std::string_view text) {
  std::string result;
  const auto unchanged = [](std::string_view part) { return std::string(part); };
  tokens.split(text, unchanged, [&](std::optional<int64_t> id, std::string_view part) {
    result += id ? "(" + std::to_string(*id) + ")" : std::string(part);
  });
  return result;
}

TEST(AddedTokens, TheLeftmostAndLongestWins) {
  AddedTokens tokens;
  EXPECT_EQ(split(tokens, "ab"), "ab");
  for (const auto& [text, id] :
       {std::pair<const char*, int64_t>{"ab", 1}, {"abc", 2}, {"bcd", 3}, {"", 4}, {"ab", 5}})
    tokens.add({.text = text}, id);
  EXPECT_EQ(split(tokens, ""), "");
  EXPECT_EQ(split(tokens, "xabcd abd bcd"), "x(2)d (5)d (3)");
}

TEST(AddedTokens, TakeWhiteSpaceAlong) {
  AddedTokens tokens;
  tokens.add({.text = "<l>", .lstrip = true}, 1);
  tokens.add({.text = "<r>", .rstrip = true}, 2);
  EXPECT_EQ(split(tokens, "a \u3000<l> b <r>\u0085\n c"), "a(1) b (2)c");
  EXPECT_EQ(split(tokens, "<r> \t<l> "), "(2)(1) ");
  EXPECT_EQ(split(tokens, "  <l>"), "(1)");
}

TEST(AddedTokens, SingleWordsStandAlone) {
  AddedTokens tokens;
  tokens.add({.text = "ab", .single_word = true}, 1);
  EXPECT_EQ(split(tokens, "ab abc xab \u00e9ab ab\u0301 ab_ -ab- ab"),
            "(1) abc xab \u00e9ab ab\u0301 ab_ -(1)- (1)");
}

}  // namespace
}  // namespace tessera::text
