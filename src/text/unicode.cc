#include "text/unicode.h"

#include <fmt/format.h>
#include <unicode/brkiter.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>
#include <unicode/utext.h>
#include <unicode/utf8.h>

#include <array>

#include "core/error.h"
#include "core/text.h"

namespace tessera::text {
namespace {

// Python's str.isspace().
bool is_python_space(UChar32 character) {
  const UCharDirection direction = u_charDirection(character);
  return u_charType(character) == U_SPACE_SEPARATOR || direction == U_WHITE_SPACE_NEUTRAL ||
         direction == U_BLOCK_SEPARATOR || direction == U_SEGMENT_SEPARATOR;
}

constexpr const char* kNfcCharacters = "[:Age=9.0:]";
constexpr int kPatternVersion = 16;

// The characters that Unicode 15.1 and 16 added to a category.
struct Additions {
  std::string_view category;
  const char* characters;
};
constexpr Additions kAdditions[] = {
    {"L",
     R"(\u1C89\u1C8A\uA7CB-\uA7CD\uA7DA-\uA7DC\U000105C0-\U000105F3\U00010D4A-\U00010D65\U00010D6F-\U00010D85)"
     R"(\U00010EC2-\U00010EC4\U00011380-\U00011389\U0001138B\U0001138E\U00011390-\U000113B5\U000113B7\U000113D1)"
     R"(\U000113D3\U00011BC0-\U00011BE0\U00013460-\U000143FA\U00016100-\U0001611D\U00016D40-\U00016D6C)"
     R"(\U00018CFF\U0001E5D0-\U0001E5ED\U0001E5F0\U0002EBF0-\U0002EE5D)"},
    {"Lu", R"(\u1C89\uA7CB\uA7CC\uA7DA\uA7DC\U00010D50-\U00010D65)"},
    {"Ll", R"(\u1C8A\uA7CD\uA7DB\U00010D70-\U00010D85)"},
    {"Lt", ""},
    {"Lm", R"(\U00010D4E\U00010D6F\U00016D40-\U00016D42\U00016D6B\U00016D6C)"},
    {"Lo", R"(\U000105C0-\U000105F3\U00010D4A-\U00010D4D\U00010D4F\U00010EC2-\U00010EC4\U00011380-\U00011389)"
           R"(\U0001138B\U0001138E\U00011390-\U000113B5\U000113B7\U000113D1\U000113D3\U00011BC0-\U00011BE0)"
           R"(\U00013460-\U000143FA\U00016100-\U0001611D\U00016D43-\U00016D6A\U00018CFF\U0001E5D0-\U0001E5ED)"
           R"(\U0001E5F0\U0002EBF0-\U0002EE5D)"},
    {"M",
     R"(\u0897\U00010D69-\U00010D6D\U00010EFC\U000113B8-\U000113C0\U000113C2\U000113C5\U000113C7-\U000113CA)"
     R"(\U000113CC-\U000113D0\U000113D2\U000113E1\U000113E2\U00011F5A\U0001611E-\U0001612F\U0001E5EE\U0001E5EF)"},
    {"N", R"(\U00010D40-\U00010D49\U000116D0-\U000116E3\U00011BF0-\U00011BF9\U00016130-\U00016139)"
          R"(\U00016D70-\U00016D79\U0001CCF0-\U0001CCF9\U0001E5F1-\U0001E5FA)"},
};

// The capitals that Unicode 16 and 17 added, in runs of every `step`th character, and the distance to their
// lowercase letters.
struct Capitals {
  char32_t first, last, step;
  int32_t distance;
};
constexpr Capitals kCapitals[] = {
    {0x1c89, 0x1c89, 1, 1},    {0xa7cb, 0xa7cb, 1, 0x264 - 0xa7cb},
    {0xa7cc, 0xa7ce, 2, 1},    {0xa7d2, 0xa7d4, 2, 1},
    {0xa7da, 0xa7da, 1, 1},    {0xa7dc, 0xa7dc, 1, 0x19b - 0xa7dc},
    {0x10d50, 0x10d65, 1, 32}, {0x16ea0, 0x16eb8, 1, 27},
};

char32_t small_letter(char32_t character) {
  for (const Capitals& run : kCapitals) {
    if (character >= run.first && character <= run.last && (character - run.first) % run.step == 0)
      return character + run.distance;
  }
  return static_cast<char32_t>(u_tolower(static_cast<UChar32>(character)));
}

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
  const icu::LocalUTextPointer content(
      utext_openUTF8(nullptr, text.data(), static_cast<int64_t>(text.size()), &status));
  TESSERA_CHECK(U_SUCCESS(status), "ICU: {}", u_errorName(status));
  breaks->setText(content.getAlias(), status);
  TESSERA_CHECK(U_SUCCESS(status), "ICU: {}", u_errorName(status));
  int32_t start = breaks->first();
  for (int32_t end = breaks->next(); end != icu::BreakIterator::DONE; start = end, end = breaks->next()) {
    visit(text.substr(start, end - start));
  }
}

std::string stripped(std::string_view text) {
  const auto all = icu::UnicodeString::fromUTF8(text);
  int32_t begin = 0;
  int32_t end = all.length();
  while (begin < end && is_python_space(all.char32At(begin))) begin = all.moveIndex32(begin, 1);
  while (begin < end && is_python_space(all.char32At(end - 1))) end = all.moveIndex32(end, -1);
  std::string result;
  return all.tempSubStringBetween(begin, end).toUTF8String(result);
}

std::string lower_and_strip(std::string_view prompt) {
  require_utf8(prompt, field("prompt"));
  icu::UnicodeString text = icu::UnicodeString::fromUTF8(prompt);
  text.toLower(icu::Locale::getRoot());
  std::string result;
  return stripped(text.toUTF8String(result));
}

std::string to_nfc(std::string_view text) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* nfc = icu::Normalizer2::getNFCInstance(status);
  static const icu::UnicodeSet known = [&] {
    icu::UnicodeSet set(kNfcCharacters, status);
    set.freeze();
    return set;
  }();
  TESSERA_CHECK(U_SUCCESS(status), "ICU: {}", u_errorName(status));
  icu::UnicodeString normalized;
  icu::FilteredNormalizer2(*nfc, known).normalize(icu::UnicodeString::fromUTF8(text), normalized, status);
  TESSERA_CHECK(U_SUCCESS(status), "ICU: {}", u_errorName(status));
  std::string result;
  normalized.toUTF8String(result);
  return result;
}

std::string to_lower_case(std::string_view text) {
  icu::UnicodeString result;
  for_each_character(text, [&](char32_t character, std::string_view) {
    result.append(static_cast<UChar32>(small_letter(character)));
    if (character == U'\u0130') result.append(static_cast<UChar32>(U'\u0307'));  // becomes two characters
  });
  std::string utf8;
  return result.toUTF8String(utf8);
}

std::optional<std::string> category_set(std::string_view category) {
  for (const Additions& additions : kAdditions) {
    if (additions.category != category) continue;
    const std::string set = fmt::format(R"([\p{{{}}}{}])", category, additions.characters);
    UVersionInfo version;
    u_getUnicodeVersion(version);
    if (version[0] <= kPatternVersion) return set;
    return fmt::format(R"([{}&&\p{{Age={}.0}}])", set, kPatternVersion);
  }
  return std::nullopt;
}

}  // namespace tessera::text
