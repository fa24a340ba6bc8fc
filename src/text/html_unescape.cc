#include "text/html_text.h"

#include <unicode/locid.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>

#include "core/error.h"
#include "text/regex.h"

namespace tessera::text {
namespace {

constexpr UChar32 kReplacement = 0xfffd;

std::string to_utf8(const icu::UnicodeString& text) {
  std::string result;
  return text.toUTF8String(result);
}

// html.unescape() drops these numbers.
bool is_dropped(UChar32 character) {
  return (character >= 0x01 && character <= 0x08) || character == 0x0b ||
         (character >= 0x0e && character <= 0x1f) || character == 0x7f || U_IS_UNICODE_NONCHAR(character);
}

// Decodes what follows "&#".
icu::UnicodeString decode_number(std::string_view number) {
  if (number.back() == ';') number.remove_suffix(1);
  const bool hexadecimal = number.front() == 'x' || number.front() == 'X';
  const UChar32 character = referenced_character(number.substr(hexadecimal ? 1 : 0), hexadecimal ? 16 : 10);
  return is_dropped(character) ? icu::UnicodeString() : icu::UnicodeString(character);
}

// Decodes what follows "&": the name that is in the table, otherwise the longest beginning that counts
// without a semicolon.
icu::UnicodeString decode_name(const std::string& name) {
  if (name.back() == ';') {
    if (const HtmlEntity* entity = find_html_entity(std::string_view(name).substr(0, name.size() - 1)))
      return text_of(*entity);
  }
  for (size_t length = name.size(); length >= 2; --length) {
    const HtmlEntity* entity = find_html_entity(std::string_view(name).substr(0, length));
    if (entity != nullptr && entity->counts_without_semicolon)
      return text_of(*entity) + icu::UnicodeString::fromUTF8(name.substr(length));
  }
  return u"&" + icu::UnicodeString::fromUTF8(name);
}

icu::UnicodeString decode_reference(const icu::UnicodeString& reference) {
  const std::string content = to_utf8(reference);
  return content[0] == '#' ? decode_number(std::string_view(content).substr(1)) : decode_name(content);
}

// Decodes &NAME; or &#number; if it is unambiguous.
std::optional<icu::UnicodeString> decode_clear_reference(const icu::UnicodeString& reference) {
  icu::UnicodeString decoded = decode_reference(reference);
  if (reference[0] == u'#') {
    if (decoded.indexOf(u';') >= 0) return std::nullopt;
    return decoded;
  }
  const std::string name = to_utf8(reference.tempSubString(0, reference.length() - 1));
  if (const HtmlEntity* entity = find_html_entity(name)) return text_of(*entity);
  icu::UnicodeString lower = icu::UnicodeString::fromUTF8(name);
  lower.toLower(icu::Locale::getRoot());
  icu::UnicodeString upper = lower;
  upper.toUpper(icu::Locale::getRoot());
  const HtmlEntity* entity = find_html_entity(to_utf8(lower));
  if (entity == nullptr || to_utf8(upper) != name || decoded != u"&" + reference) return std::nullopt;
  return text_of(*entity).toUpper(icu::Locale::getRoot());
}

// Replaces the matches of `regex` whose group `decode` can decode.
icu::UnicodeString decode_all(
    const icu::UnicodeString& text, const PythonRegex& regex,
    const std::function<std::optional<icu::UnicodeString>(const icu::UnicodeString& reference)>& decode) {
  icu::UnicodeString result;
  int32_t position = 0;
  while (const auto match = regex.search(text, position)) {
    result.append(text, position, match->begin - position);
    if (const auto decoded = decode(match->group)) {
      result.append(*decoded);
    } else {
      result.append(text, match->begin, match->end - match->begin);
    }
    position = match->end;
  }
  return result.append(text, position, text.length() - position);
}

}  // namespace

UChar32 windows_1252_character(UChar32 byte) {
  static constexpr char16_t kCharacters[] =
      u"\u20ac\u0081\u201a\u0192\u201e\u2026\u2020\u2021\u02c6\u2030\u0160\u2039\u0152\u008d\u017d\u008f"
      u"\u0090\u2018\u2019\u201c\u201d\u2022\u2013\u2014\u02dc\u2122\u0161\u203a\u0153\u009d\u017e\u0178";
  TESSERA_CHECK(byte >= 0x80 && byte <= 0x9f, "byte {}", byte);
  return kCharacters[byte - 0x80];
}

UChar32 referenced_character(std::string_view digits, int base) {
  constexpr UChar32 kTooLarge = UCHAR_MAX_VALUE + 1;
  UChar32 number = 0;
  for (const char digit : digits)
    number = std::min(number * base + u_digit(static_cast<UChar32>(digit), 16), kTooLarge);
  if (number == 0 || number == kTooLarge || U_IS_SURROGATE(number)) return kReplacement;
  return number >= 0x80 && number <= 0x9f ? windows_1252_character(number) : number;
}

icu::UnicodeString text_of(const HtmlEntity& entity) {
  icu::UnicodeString text;
  for (const char32_t character : entity.text) text.append(static_cast<UChar32>(character));
  return text;
}

icu::UnicodeString unescape_html(const icu::UnicodeString& text) {
  static const PythonRegex& regex =
      *new PythonRegex(R"(&(#[0-9]+;?|#[xX][0-9a-fA-F]+;?|[^\t\n\f <\&#;]{1,32};?))");
  return decode_all(text, regex, decode_reference);
}

icu::UnicodeString unescape_clear_html(const icu::UnicodeString& text) {
  static const PythonRegex& regex = *new PythonRegex("&(#?[0-9A-Za-z]{1,24};)");
  return decode_all(text, regex, decode_clear_reference);
}

}  // namespace tessera::text
