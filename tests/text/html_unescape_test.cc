// Python 3.11's html.unescape() over numbers on both sides of each of its limits.
#include "text/html_text.h"

#include <gtest/gtest.h>

#include <vector>

namespace tessera::text {
namespace {

std::string unescaped(const std::string& reference) {
  std::string result;
  return unescape_html(icu::UnicodeString::fromUTF8(reference)).toUTF8String(result);
}

std::string utf8(UChar32 character) {
  std::string result;
  return icu::UnicodeString(character).toUTF8String(result);
}

TEST(UnescapeHtml, DropsControlsAndWhatIsNoCharacter) {
  for (const UChar32 dropped : {0x01, 0x02, 0x07, 0x08, 0x0b, 0x0e, 0x0f, 0x1e, 0x1f, 0x7f, 0xfdd0, 0xfdef,
                                0xfffe, 0xffff, 0x1fffe, 0x1ffff, 0x10fffe, 0x10ffff}) {
    EXPECT_EQ(unescaped(fmt::format("a&#{};b", dropped)), "ab") << dropped;
    EXPECT_EQ(unescaped(fmt::format("a&#x{:X};b", dropped)), "ab") << dropped;
  }
  for (const UChar32 kept : {0x09, 0x0a, 0x0c, 0x0d, 0x20, 0x21, 0x7e, 0x81, 0x8d, 0x9d, 0xa0, 0xd7ff, 0xe000,
                             0xfdcf, 0xfdf0, 0xfffd, 0x10000, 0x10fffd}) {
    EXPECT_EQ(unescaped(fmt::format("a&#{};b", kept)), "a" + utf8(kept) + "b") << kept;
    EXPECT_EQ(unescaped(fmt::format("a&#x{:x};b", kept)), "a" + utf8(kept) + "b") << kept;
  }
  for (const int64_t replaced : {0x00, 0xd800, 0xdfff, 0x110000, 0x7fffffff})
    EXPECT_EQ(unescaped(fmt::format("a&#{};b", replaced)), "a\ufffdb") << replaced;
  EXPECT_EQ(unescaped("&#128;&#x9f;&#130"), "\u20ac\u0178\u201a");  // as Windows-1252 has them
}

}  // namespace
}  // namespace tessera::text
