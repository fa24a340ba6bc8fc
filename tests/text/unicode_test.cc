#include "text/unicode.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace tessera::text {
namespace {

TEST(CleanPrompt, LowersAndStripsAsPythonDoes) {
  EXPECT_EQ(lower_and_strip(""), "");
  EXPECT_EQ(lower_and_strip(" \t\r\n "), "");
  EXPECT_EQ(lower_and_strip("  A Photo,  of a CAT \n"), "a photo,  of a cat");
  EXPECT_EQ(lower_and_strip("ÀÉÎ Ünïcode ПРИВЕТ ＡＢＣ"), "àéî ünïcode привет ａｂｃ");
  EXPECT_EQ(lower_and_strip("İstanbul"), "i\u0307stanbul");
  // Sigma is final if a letter precedes and none follows; marks and dots in between do not count.
  EXPECT_EQ(lower_and_strip("ΟΔΥΣΣΕΥΣ ΣΑΣ. Σ"), "οδυσσευς σας. σ");
  EXPECT_EQ(lower_and_strip("Ǆ ǅ ẞ 𐐀 Ⱥ"), "ǆ ǆ ß 𐐨 ⱥ");
  // Python also counts separators as white space that lack Unicode's property of that name.
  EXPECT_EQ(lower_and_strip("\x1c\x1d\x1e\x1f\u0085\u00a0\u2003\u2028\u3000x\u205f\u202f\u1680"), "x");
  EXPECT_EQ(lower_and_strip("\u200bx\ufeff"), "\u200bx\ufeff");
}

TEST(CleanPrompt, NamesTheByteThatIsNotUtf8) {
  for (const auto& [text, position] : {std::pair<std::string, std::string>{"\xff", "byte 0 (0xff)"},
                                       {"caf\xe9 au lait", "byte 3 (0xe9)"},
                                       {"ab\xed\xa0\x80", "byte 2 (0xed)"},
                                       {"abc\xe2\x82", "byte 3 (0xe2)"},
                                       {"\xc0\xaf", "byte 0 (0xc0)"}}) {
    try {
      lower_and_strip(text);
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      EXPECT_NE(std::string(error.what()).find(position), std::string::npos) << error.what();
    }
  }
}

TEST(Unicode, CutsGraphemes) {
  std::vector<std::string> parts;
  for_each_grapheme("e\u0301a\r\n👨\u200d👩x", [&](std::string_view part) { parts.emplace_back(part); });
  EXPECT_EQ(parts, (std::vector<std::string>{"e\u0301", "a", "\r\n", "👨\u200d👩", "x"}));
}

}  // namespace
}  // namespace tessera::text
