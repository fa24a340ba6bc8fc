// The text of HTML: without its markup, and with its character references decoded like Python's
// html.unescape() and other Python libraries.
#pragma once

#include <unicode/unistr.h>

#include <string>
#include <string_view>

namespace tessera::text {

// Returns what `BeautifulSoup(markup, "html.parser").text` (4.15) gives with the html.parser of Python
// 3.11.7, in which only "-->" or "-- >" ends a comment, and an unfinished tag is text. Later versions of
// Python read damaged markup differently. `markup` must be in lower case. Throws Error(kUsage) for "<![" that
// is not followed by the name of a section, which makes BeautifulSoup raise.
icu::UnicodeString html_text(const icu::UnicodeString& markup);

// The named character references of HTML 5, such as &eacute;.
struct HtmlEntity {
  std::u32string text;
  bool counts_without_semicolon = false;  // &eacute, for the references of the first HTML versions
};

// Returns the entity of a name without its semicolon, or null if HTML 5 has none. Case matters.
const HtmlEntity* find_html_entity(std::string_view name);

// The character of Windows-1252 at a byte from 0x80 to 0x9f. The five free bytes stay control characters.
UChar32 windows_1252_character(UChar32 byte);

// The character of a numeric reference, whose digits in base 10 or 16 are all `digits`: U+FFFD if Unicode has
// no such character, and Windows-1252 for C1 controls.
UChar32 referenced_character(std::string_view digits, int base);

icu::UnicodeString text_of(const HtmlEntity& entity);

// Decodes named and numeric references, many of them even without a semicolon.
icu::UnicodeString unescape_html(const icu::UnicodeString& text);

// Decodes references with a semicolon, and names in capitals too (&EACUTE;), like ftfy.
icu::UnicodeString unescape_clear_html(const icu::UnicodeString& text);

}  // namespace tessera::text
