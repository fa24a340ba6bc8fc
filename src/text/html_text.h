// The text of HTML: without its markup, and with its character references decoded, as Python's
// html.unescape() and other libraries of Python do.
#pragma once

#include <unicode/unistr.h>

#include <string>
#include <string_view>

namespace tessera::text {

// Returns what `BeautifulSoup(markup, "html.parser").text` (4.15) gives with the html.parser of
// Python 3.11.7, in which a comment ends at "-->" or "-- >" alone and an unfinished tag is text. Later
// versions of Python read damaged markup in another way. `markup` must be in lower case. Throws Error(kUsage)
// for "<![" without the name of a section behind it, which makes BeautifulSoup raise.
icu::UnicodeString html_text(const icu::UnicodeString& markup);

// The named character references of HTML 5, such as &eacute;.
struct HtmlEntity {
  std::u32string text;
  bool counts_without_semicolon = false;  // &eacute, for the references of the first HTML versions
};

// Returns the entity of a name without its semicolon, or null if HTML 5 has none. Capitals count.
const HtmlEntity* find_html_entity(std::string_view name);

// The character of Windows-1252 at a byte from 0x80 to 0x9f. The five free bytes stay control characters.
UChar32 windows_1252_character(UChar32 byte);

// The character of a reference to a number, whose digits in base 10 or 16 are all `digits`: U+FFFD if Unicode
// has no such character, and Windows-1252 for C1 controls.
UChar32 referenced_character(std::string_view digits, int base);

icu::UnicodeString text_of(const HtmlEntity& entity);

// Decodes references with names or numbers, many also without a semicolon.
icu::UnicodeString unescape_html(const icu::UnicodeString& text);

// Decodes the references that have a semicolon, and names in capitals too (&EACUTE;), as ftfy does.
icu::UnicodeString unescape_clear_html(const icu::UnicodeString& text);

}  // namespace tessera::text
