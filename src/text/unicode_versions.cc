#include "text/unicode_versions.h"

#include <fmt/format.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>

#include <array>

#include "core/error.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

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
    {"M",
     R"(\u0897\U00010D69-\U00010D6D\U00010EFC\U000113B8-\U000113C0\U000113C2\U000113C5\U000113C7-\U000113CA)"
     R"(\U000113CC-\U000113D0\U000113D2\U000113E1\U000113E2\U00011F5A\U0001611E-\U0001612F\U0001E5EE\U0001E5EF)"},
    {"N", R"(\U00010D40-\U00010D49\U000116D0-\U000116E3\U00011BF0-\U00011BF9\U00016130-\U00016139)"
          R"(\U00016D70-\U00016D79\U0001CCF0-\U0001CCF9\U0001E5F1-\U0001E5FA)"},
};

// The capitals that Unicode 16 and 17 added, in runs of every `step`th, and the distance to their small
// letters.
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

icu::UnicodeString from_utf8(std::string_view text) {
  return icu::UnicodeString::fromUTF8(icu::StringPiece(text.data(), static_cast<int32_t>(text.size())));
}

char32_t small_letter(char32_t character) {
  for (const Capitals& run : kCapitals) {
    if (character >= run.first && character <= run.last && (character - run.first) % run.step == 0)
      return character + run.distance;
  }
  return static_cast<char32_t>(u_tolower(static_cast<UChar32>(character)));
}

}  // namespace

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
  icu::FilteredNormalizer2(*nfc, known).normalize(from_utf8(text), normalized, status);
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
