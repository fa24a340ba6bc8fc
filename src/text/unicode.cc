#include "text/unicode.h"

#include <unicode/brkiter.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>
#include <unicode/utext.h>
#include <unicode/utf8.h>

#include "core/error.h"
#include "core/utf8.h"

namespace tessera::text {
namespace {

// Python's str.isspace().
bool is_python_space(UChar32 character) {
  const UCharDirection direction = u_charDirection(character);
  return u_charType(character) == U_SPACE_SEPARATOR || direction == U_WHITE_SPACE_NEUTRAL ||
         direction == U_BLOCK_SEPARATOR || direction == U_SEGMENT_SEPARATOR;
}

struct CloseText {
  void operator()(UText* text) const { utext_close(text); }
};

}  // namespace

void require_utf8(std::string_view text, const std::string& where) {
  if (const auto position = find_invalid_utf8(text)) {
    usage_error(where, "the text is not UTF-8: byte {} (0x{:02x}) does not belong to a character", *position,
                static_cast<unsigned char>(text[*position]));
  }
}

size_t character_length(char first) {
  return 1 + U8_COUNT_TRAIL_BYTES_UNSAFE(static_cast<uint8_t>(first));
}

char32_t first_character(std::string_view text) {
  size_t position = 0;
  UChar32 character = 0;
  U8_NEXT_UNSAFE(text.data(), position, character);
  return static_cast<char32_t>(character);
}

char32_t last_character(std::string_view text) {
  size_t position = text.size();
  UChar32 character = 0;
  U8_PREV_UNSAFE(text.data(), position, character);
  return static_cast<char32_t>(character);
}

bool is_white_space(char32_t character) {
  return u_isUWhiteSpace(static_cast<UChar32>(character)) != 0;
}

bool is_word_character(char32_t character) {
  const auto code = static_cast<UChar32>(character);
  return u_hasBinaryProperty(code, UCHAR_ALPHABETIC) != 0 ||
         u_hasBinaryProperty(code, UCHAR_JOIN_CONTROL) != 0 ||
         (U_GET_GC_MASK(code) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}

size_t leading_white_space(std::string_view text) {
  size_t count = 0;
  while (count < text.size() && is_white_space(first_character(text.substr(count))))
    count += character_length(text[count]);
  return count;
}

size_t trailing_white_space(std::string_view text) {
  size_t end = text.size();
  for (size_t start = end; start > 0; end = start) {
    const char32_t character = last_character(text.substr(0, start));
    if (!is_white_space(character)) break;
    start -= U8_LENGTH(static_cast<UChar32>(character));
  }
  return text.size() - end;
}

void for_each_character(std::string_view text,
                        const std::function<void(char32_t character, std::string_view bytes)>& visit) {
  for (size_t position = 0; position < text.size();) {
    const size_t start = position;
    UChar32 character = 0;
    U8_NEXT_UNSAFE(text.data(), position, character);
    visit(static_cast<char32_t>(character), text.substr(start, position - start));
  }
}

void for_each_grapheme(std::string_view text, const std::function<void(std::string_view grapheme)>& visit) {
  UErrorCode status = U_ZERO_ERROR;
  const std::unique_ptr<icu::BreakIterator> breaks(
      icu::BreakIterator::createCharacterInstance(icu::Locale::getRoot(), status));
  const std::unique_ptr<UText, CloseText> content(
      utext_openUTF8(nullptr, text.data(), static_cast<int64_t>(text.size()), &status));
  TESSERA_CHECK(U_SUCCESS(status), "ICU: {}", u_errorName(status));
  breaks->setText(content.get(), status);
  TESSERA_CHECK(U_SUCCESS(status), "ICU: {}", u_errorName(status));
  int32_t start = breaks->first();
  for (int32_t end = breaks->next(); end != icu::BreakIterator::DONE; start = end, end = breaks->next()) {
    visit(text.substr(start, end - start));
  }
}

std::string stripped(std::string_view text) {
  const auto all =
      icu::UnicodeString::fromUTF8(icu::StringPiece(text.data(), static_cast<int32_t>(text.size())));
  int32_t begin = 0;
  int32_t end = all.length();
  while (begin < end && is_python_space(all.char32At(begin))) begin = all.moveIndex32(begin, 1);
  while (begin < end && is_python_space(all.char32At(end - 1))) end = all.moveIndex32(end, -1);
  std::string result;
  return all.tempSubStringBetween(begin, end).toUTF8String(result);
}

std::string lower_and_strip(std::string_view prompt) {
  require_utf8(prompt, field("prompt"));
  icu::UnicodeString text =
      icu::UnicodeString::fromUTF8(icu::StringPiece(prompt.data(), static_cast<int32_t>(prompt.size())));
  text.toLower(icu::Locale::getRoot());
  std::string result;
  return stripped(text.toUTF8String(result));
}

}  // namespace tessera::text
