#include "text/text_fixer.h"

#include <unicode/normalizer2.h>

#include <unordered_map>

#include "core/error.h"
#include "text/html_text.h"
#include "text/regex.h"

namespace tessera::text {
namespace {

using Replacements = std::unordered_map<UChar32, icu::UnicodeString>;

const icu::Normalizer2& nfc() {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = icu::Normalizer2::getNFCInstance(status);
  TESSERA_CHECK(U_SUCCESS(status), "ICU: {}", u_errorName(status));
  return *normalizer;
}

icu::UnicodeString normalize(const icu::Normalizer2& normalizer, const icu::UnicodeString& text) {
  UErrorCode status = U_ZERO_ERROR;
  icu::UnicodeString result = normalizer.normalize(text, status);
  TESSERA_CHECK(U_SUCCESS(status), "ICU: {}", u_errorName(status));
  return result;
}

// Ligatures and digraphs of Latin letters.
void add_ligatures(Replacements& replacements) {
  static constexpr std::pair<UChar32, const char16_t*> kLigatures[] = {
      {0x132, u"IJ"},       {0x133, u"ij"},  {0x149, u"\u02bcn"}, {0x1c4, u"D\u017d"}, {0x1c5, u"D\u017e"},
      {0x1c6, u"d\u017e"},  {0x1c7, u"LJ"},  {0x1c8, u"Lj"},      {0x1c9, u"lj"},      {0x1ca, u"NJ"},
      {0x1cb, u"Nj"},       {0x1cc, u"nj"},  {0x1f1, u"DZ"},      {0x1f2, u"Dz"},      {0x1f3, u"dz"},
      {0xfb00, u"ff"},      {0xfb01, u"fi"}, {0xfb02, u"fl"},     {0xfb03, u"ffi"},    {0xfb04, u"ffl"},
      {0xfb05, u"\u017ft"}, {0xfb06, u"st"},
  };
  for (const auto& [ligature, letters] : kLigatures) replacements[ligature] = letters;
}

// Half-width and full-width forms.
void add_widths(Replacements& replacements) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* nfkc = icu::Normalizer2::getNFKCInstance(status);
  TESSERA_CHECK(U_SUCCESS(status), "ICU: {}", u_errorName(status));
  for (UChar32 form = 0xff01; form < 0xfff0; ++form) {
    const icu::UnicodeString character(form);
    const icu::UnicodeString usual = normalize(*nfkc, character);
    if (usual != character) replacements[form] = usual;
  }
  replacements[0x3000] = u" ";
}

// Fixes of single characters. A fix never produces a character that another one replaces.
const Replacements& replacements() {
  static const Replacements& all = *[] {
    auto* result = new Replacements;
    for (UChar32 byte = 0x80; byte <= 0x9f; ++byte) (*result)[byte] = windows_1252_character(byte);
    add_ligatures(*result);
    add_widths(*result);
    return result;
  }();
  return all;
}

icu::UnicodeString replace_characters(const icu::UnicodeString& text) {
  icu::UnicodeString result;
  for (int32_t i = 0; i < text.length(); i = text.moveIndex32(i, 1)) {
    const UChar32 character = text.char32At(i);
    const auto found = replacements().find(character);
    if (found == replacements().end()) {
      result.append(character);
    } else {
      result.append(found->second);
    }
  }
  return result;
}

constexpr RegexRule kRules[] = {
    {R"([\u201c-\u201f])", u"\""},
    {R"([\u02bc\u2018-\u201b])", u"'"},
    {R"(\r\n|[\r\u2028\u2029])", u"\n"},
    {R"(\u001b\[[\d;]*[a-zA-Z])", u""},  // escape sequences of terminals
    {R"([\u0000-\u0008\u000b\u000e-\u001f\u007f\u206a-\u206f\ufeff\ufff9-\ufffc])", u""},
};

icu::UnicodeString fix_line_once(icu::UnicodeString text, bool has_entities) {
  static const RegexRules& rules = *new RegexRules(kRules);
  if (has_entities) text = unescape_clear_html(text);
  text = replace_characters(text);
  return normalize(nfc(), rules.apply(text));
}

}  // namespace

icu::UnicodeString fix_text(const icu::UnicodeString& text) {
  icu::UnicodeString result;
  bool has_entities = true;
  for (int32_t begin = 0; begin < text.length();) {
    const int32_t line_end = text.indexOf(u'\n', begin);
    const int32_t end = line_end < 0 ? text.length() : line_end + 1;
    icu::UnicodeString line = text.tempSubStringBetween(begin, end);
    if (line.indexOf(u'<') >= 0) has_entities = false;
    for (icu::UnicodeString before; before != line;) {  // one repair can enable another
      before = line;
      line = fix_line_once(line, has_entities);
    }
    result.append(line);
    begin = end;
  }
  return result;
}

}  // namespace tessera::text
