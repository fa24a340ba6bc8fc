#include "text/caption_cleaner.h"

#include <unicode/unistr.h>

#include "core/error.h"
#include "core/log.h"
#include "core/text.h"
#include "text/html_text.h"
#include "text/regex.h"
#include "text/text_fixer.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

// Some rules and the reading of damaged markup take a time that grows with the square of the length.
constexpr size_t kMaxBytes = 16'384;

// The time of some rules, and of reading damaged markup, grows with the square of the length.
constexpr RegexRule kLinkRules[] = {
    {"<person>", u"person"},
    {R"(\b(?:https?:(?:/{1,3}|[a-zA-Z0-9%])|)"
     R"([a-zA-Z0-9.\-]+[.](?:com|co|ru|net|org|edu|gov|it)[\w/\-]*\b/?(?!@)))",
     u""},
    {R"(\b(?:www:(?:/{1,3}|[a-zA-Z0-9%])|)"
     R"([a-zA-Z0-9.\-]+[.](?:com|co|ru|net|org|edu|gov|it)[\w/\-]*\b/?(?!@)))",
     u""},
};

// These apply between the removal of markup and the splitting of names with many dashes.
constexpr RegexRule kSignRules[] = {
    {R"(@\w+\b)", u""},            // nicknames
    {R"([\u31c0-\u9fff]+)", u""},  // from CJK strokes to CJK unified ideographs
    {R"([\u002d\u058a\u05be\u1400\u1806\u2010-\u2015\u2e17\u2e1a\u2e3a\u2e3b\u2e40\u301c\u3030\u30a0)"
     R"(\ufe31\ufe32\ufe58\ufe63\uff0d]+)",
     u"-"},
    {R"([`\u00b4\u00ab\u00bb\u201c\u201d\u00a8])", u"\""},
    {R"([\u2018\u2019])", u"'"},
    {R"(\&quot;?)", u""},
    {R"(\&amp)", u""},
    {R"(\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})", u" "},  // IP addresses
    {R"(\d:\d\d\s+$)", u""},                          // the time at the end of a message
    {R"(\\n)", u" "},
    {R"(#\d{1,3}\b)", u""},
    {R"(#\d{5,}\b)", u""},
    {R"(\b\d{6,}\b)", u""},
    // A file name begins at the beginning of a word. Without the first condition, the regex would be tried at
    // each of its characters.
    {R"((?<!\S)\S+\.(?:png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4))", u""},
    {R"(["']{2,})", u"\""},
    {R"(\.{2,})", u" "},
    {R"([#\u00ae\u2022\u00a9\u2122\&@\u00b7\u00ba\u00bd\u00be\u00bf\u00a1\u00a7~()\[\]{}|\\/*]+)", u" "},
    {R"(\s+\.\s+)", u" "},
};

// These rules apply after the repair of characters.
constexpr RegexRule kWordRules[] = {
    {R"(\b[a-zA-Z]{1,3}\d{3,15}\b)", u""},
    {R"(\b[a-zA-Z]+\d+[a-zA-Z]+\b)", u""},
    {R"(\b\d+[a-zA-Z]+\d+\b)", u""},
    {R"((worldwide\s+)?(free\s+)?shipping)", u""},
    {R"((free\s)?download(\sfree)?)", u""},
    {R"(\bclick\b\s(?:for|on)\s\w+)", u""},
    {R"(\b(?:png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4)(\simages?)?)", u""},
    {R"(\bpage\s+\d+\b)", u""},
    {R"(\b\d*[a-zA-Z]+\d+[a-zA-Z]+\d+[a-zA-Z\d]*\b)", u" "},
    {R"(\b\d+\.?\d*[x\u0445\u00d7]\d+\.?\d*\b)", u""},  // sizes; the second cross is Cyrillic
    {R"(\b\s+:\s+)", u": "},
    {R"((\D[,./])\b)", u"$1 "},
    {R"(\s+)", u" "},
    {R"(^["']([\w\W]+)["']$)", u"$1"},
    {R"(^['_,\-:;])", u""},
    {R"(['_,\-:+]$)", u""},
    {R"(^\.\S+$)", u""},
    {R"(^\s+)", u""},
    {R"(\s+$)", u""},
};

// Returns the value of a hexadecimal digit, or -1.
int hex_value(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
  return -1;
}

// Like urllib.parse.unquote_plus(). Bytes that are not UTF-8 become U+FFFD.
std::string decode_percent(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_escape =
        text[i] == '%' && i + 2 < text.size() && hex_value(text[i + 1]) >= 0 && hex_value(text[i + 2]) >= 0;
    if (is_escape) {
      bytes += static_cast<char>(hex_value(text[i + 1]) * 16 + hex_value(text[i + 2]));
      i += 2;
    } else {
      bytes += text[i] == '+' ? ' ' : text[i];
    }
  }
  std::string decoded;
  return icu::UnicodeString::fromUTF8(bytes).toUTF8String(decoded);
}

// Splits names like this-is-my-cute-cat.
icu::UnicodeString split_names(icu::UnicodeString text) {
  int dashes = 0;
  for (int32_t i = 0; i < text.length(); ++i) dashes += text[i] == u'-' || text[i] == u'_';
  if (dashes > 3) text.findAndReplace(u"-", u" ").findAndReplace(u"_", u" ");
  return text;
}

// Returns the bytes of `text` in Windows-1252, with 0 for other characters and ASCII.
std::string high_bytes(const icu::UnicodeString& text) {
  std::string bytes;
  for (int32_t i = 0; i < text.length(); ++i) {
    char byte = 0;
    if (text[i] >= 0xa0 && text[i] <= 0xff) byte = static_cast<char>(text[i]);
    for (UChar32 control = 0x80; control <= 0x9f; ++control)
      if (windows_1252_character(control) == text[i]) byte = static_cast<char>(control);
    bytes += byte;
  }
  return bytes;
}

// Returns whether the text seems to be UTF-8 that was read as Windows-1252 ("Ã©" for "é"). Among two-byte
// letters, only Latin and Cyrillic ones count: others begin like capitals before punctuation.
bool seems_misdecoded(std::string_view caption) {
  const std::string bytes = high_bytes(icu::UnicodeString::fromUTF8(caption));
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto first = static_cast<uint8_t>(bytes[i]);
    const bool is_short = first == 0xc2 || first == 0xc3 || first == 0xd0 || first == 0xd1;
    const size_t length = is_short ? 2 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 0;
    if (length > 0 && i + length <= bytes.size() && !find_invalid_utf8(bytes.substr(i, length))) return true;
  }
  return false;
}

std::string clean_once(std::string_view caption, CaptionStyle style) {
  static const RegexRules& link_rules = *new RegexRules(kLinkRules);
  static const RegexRules& sign_rules = *new RegexRules(kSignRules);
  static const RegexRules& word_rules = *new RegexRules(kWordRules);
  const std::string lower = lower_and_strip(decode_percent(caption));
  icu::UnicodeString text = html_text(link_rules.apply(icu::UnicodeString::fromUTF8(lower)));
  text = fix_text(split_names(sign_rules.apply(text)));
  text = unescape_html(unescape_html(text));
  std::string result;
  if (style == CaptionStyle::kOpenSora)
    text = icu::UnicodeString::fromUTF8(stripped(text.toUTF8String(result)));
  result.clear();
  return word_rules.apply(text).toUTF8String(result);
}

}  // namespace

std::string clean_caption(std::string_view caption, CaptionStyle style) {
  require_utf8(caption, field("prompt"));
  require_cleanable_size(caption, "prompt");
  if (seems_misdecoded(caption)) {
    log_warning("[{}] seems to be text that was read in a wrong encoding, which diffusers may repair: '{}'",
                field("prompt"), printable(cut_utf8(caption, 40)));
  }
  return clean_once(clean_once(caption, style), style);
}

void require_cleanable_size(std::string_view caption, const char* name) {
  if (caption.size() > kMaxBytes) {
    usage_error(field(name), "the caption has {} bytes, and at most {} can be cleaned; use {}",
                caption.size(), kMaxBytes, field("clean_caption", false));
  }
}

}  // namespace tessera::text
