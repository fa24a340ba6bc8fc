#include "text/regex.h"

#include <unicode/utext.h>

#include <cctype>

#include "core/error.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

// The limit is in ICU's unit of about 10,000 steps.
constexpr int32_t kMaxTime = 10'000, kMaxPythonTime = 20'000;

// Returns an ICU pattern that matches `text` literally.
std::string escape_pattern(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x80 && std::isalnum(static_cast<unsigned char>(c)) == 0)
      result += '\\';
    result += c;
  }
  return result;
}

// Translates a pattern of Oniguruma's syntax into ICU's, from left to right.
class PatternReader {
 public:
  PatternReader(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string translate() {
    std::string result;
    while (!rest().empty()) result += element();
    return result;
  }

 private:
  // A member of a set.
  struct Member {
    std::string text;
    bool is_character;  // a single one, which may be an end of a range
  };

  std::string_view rest() const { return pattern_.substr(position_); }

  std::string_view take(size_t count) {
    const std::string_view taken = rest().substr(0, count);
    position_ += taken.size();
    return taken;
  }

  [[noreturn]] void fail(std::string_view what) const {
    input_error(where_, "the pattern '{}' has '{}' at byte {}, which is not supported", pattern_, what,
                position_);
  }

  std::string element() {
    switch (rest()[0]) {
      case '(':
        return group();
      case '[':
        return set();
      case '{':
        return interval();
      case '|':
      case ')':
      case '*':
      case '+':
      case '?':
        return std::string(take(1));
      case '.':
      case '^':
      case '$':  // the syntaxes differ in this
        fail(rest().substr(0, 1));
      default:
        return member().text;
    }
  }

  std::string group() {
    for (const std::string_view opening : {"(?:", "(?i:", "(?!", "(?="}) {
      if (rest().starts_with(opening)) return std::string(take(opening.size()));
    }
    if (rest().starts_with("(?")) fail(rest().substr(0, 3));
    return std::string(take(1));
  }

  // Takes {2}, {2,} or {2,3}.
  std::string interval() {
    const size_t end = rest().find('}');
    const std::string_view bounds = rest().substr(1, end == std::string_view::npos ? 0 : end - 1);
    const size_t comma = std::min(bounds.find(','), bounds.size());
    const bool valid = comma > 0 && bounds.find_first_not_of("0123456789") >= comma &&
                       bounds.find_first_not_of("0123456789", comma + 1) == std::string_view::npos;
    const std::string_view after = valid ? rest().substr(end + 1) : "";
    // In ICU's syntax, a following sign only makes it lazy or possessive.
    if (!valid || after.starts_with('?') || after.starts_with('+')) fail("{");
    return std::string(take(end + 1));
  }

  std::string set() {
    std::string result(take(rest().starts_with("[^") ? 2 : 1));
    if (rest().starts_with(']')) fail("]");
    while (!rest().starts_with(']')) {
      const Member first = member();
      result += first.text;
      if (!rest().starts_with('-') || rest().starts_with("-]")) continue;
      if (!first.is_character) fail("-");
      take(1);
      const Member last = member();
      if (!last.is_character) fail(last.text);
      result += '-' + last.text;
    }
    return result += take(1);
  }

  Member member() {
    if (rest().empty()) fail("[");
    if (rest()[0] == '\\') return escape();
    if (rest()[0] == '[' || rest().starts_with("&&")) fail(rest().substr(0, 2));
    return {escape_pattern(take(character_length(rest()[0]))), true};
  }

  Member escape() {
    const std::string_view code = rest().substr(0, 2);
    if (code == R"(\s)" || code == R"(\S)") {
      take(2);
      return {code == R"(\s)" ? R"(\p{White_Space})" : R"(\P{White_Space})", false};
    }
    if (code == R"(\p)" || code == R"(\P)") {
      const size_t end = std::min(rest().find('}'), rest().size());
      const std::string_view property = rest().substr(2, end - 2);
      const auto category = property.starts_with('{') ? category_set(property.substr(1)) : std::nullopt;
      if (!category) fail(rest().substr(0, end + 1));
      take(end + 1);
      return {code == R"(\p)" ? *category : "[^" + *category + "]", false};
    }
    if (code == R"(\r)" || code == R"(\n)" || code == R"(\t)") return {std::string(take(2)), true};
    if (code.size() < 2 || std::ispunct(static_cast<unsigned char>(code[1])) == 0) fail(code);
    return {std::string(take(2)), true};
  }

  std::string_view pattern_;
  const std::string& where_;
  size_t position_ = 0;
};

// Python's str.isalnum() and the underscore. ICU's own \w includes marks and lacks most numbers.
constexpr std::string_view kPythonWord = R"(\p{L}\p{N}_)";
// Python's str.isspace(). ICU's own \s lacks the separators of ASCII.
constexpr std::string_view kPythonSpace = R"(\p{Z}\t-\r\u001c-\u001f\u0085)";

// Returns the meaning of a letter after a backslash in ICU's syntax, or nothing if it is the same.
std::string class_of(char letter) {
  switch (letter) {
    case 'w':
      return fmt::format("[{}]", kPythonWord);
    case 'W':
      return fmt::format("[^{}]", kPythonWord);
    case 's':
      return fmt::format("[{}]", kPythonSpace);
    case 'S':
      return fmt::format("[^{}]", kPythonSpace);
    // ICU's own \b ignores marks.
    case 'b':
      return fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", kPythonWord);
    default:
      return "";
  }
}

std::string translate_classes(std::string_view pattern) {
  std::string result;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '$') {
      result += R"((?=\n?\z))";  // ICU knows more line ends than Python
    } else if (pattern[i] == '\\' && i + 1 < pattern.size()) {
      const std::string expression = class_of(pattern[++i]);
      result += expression.empty() ? std::string(pattern.substr(i - 1, 2)) : expression;
    } else {
      result += pattern[i];
    }
  }
  return result;
}

void require_success(UErrorCode status) {
  if (U_FAILURE(status)) {
    usage_error(field("prompt"), "cleaning this caption takes too much time or memory ({}); use {}",
                u_errorName(status), field("clean_caption", false));
  }
}

std::optional<PythonRegex::Match> match_of(const icu::RegexMatcher& matcher, bool found, UErrorCode& status) {
  require_success(status);
  if (!found) return std::nullopt;
  PythonRegex::Match match{matcher.start(status), matcher.end(status), {}};
  if (matcher.groupCount() > 0) match.group = matcher.group(1, status);
  require_success(status);
  return match;
}

}  // namespace

Regex::Regex(std::string_view pattern, const std::string& where) : where_(where) {
  if (pattern.empty()) input_error(where, "an empty pattern");
  compile(PatternReader(pattern, where).translate());
}

Regex Regex::of_text(std::string_view text, const std::string& where) {
  if (text.empty()) input_error(where, "an empty pattern");
  Regex regex;
  regex.where_ = where;
  regex.compile(escape_pattern(text));
  return regex;
}

void Regex::compile(const std::string& pattern) {
  UErrorCode status = U_ZERO_ERROR;
  pattern_.reset(icu::RegexPattern::compile(icu::UnicodeString::fromUTF8(pattern), 0, status));
  if (U_FAILURE(status))
    input_error(where_, "the pattern '{}' is not valid: {}", pattern, u_errorName(status));
}

std::vector<Regex::Match> Regex::find_all(std::string_view text) const {
  UErrorCode status = U_ZERO_ERROR;
  const icu::LocalUTextPointer content(
      utext_openUTF8(nullptr, text.data(), static_cast<int64_t>(text.size()), &status));
  const std::unique_ptr<icu::RegexMatcher> matcher(pattern_->matcher(status));
  TESSERA_CHECK(U_SUCCESS(status), "ICU: {}", u_errorName(status));
  matcher->setTimeLimit(kMaxTime, status);
  matcher->reset(content.getAlias());
  std::vector<Match> matches;
  while (matcher->find(status)) {
    const Match match{static_cast<size_t>(matcher->start64(status)),
                      static_cast<size_t>(matcher->end64(status))};
    if (match.begin == match.end && !matches.empty() && matches.back().end == match.end) continue;
    matches.push_back(match);
  }
  if (U_FAILURE(status)) {
    input_error(where_, "a pattern of the tokenizer takes too much time or memory on this text ({})",
                u_errorName(status));
  }
  return matches;
}

PythonRegex::PythonRegex(std::string_view pattern) {
  UErrorCode status = U_ZERO_ERROR;
  pattern_.reset(
      icu::RegexPattern::compile(icu::UnicodeString::fromUTF8(translate_classes(pattern)), 0, status));
  TESSERA_CHECK(U_SUCCESS(status), "{}: {}", pattern, u_errorName(status));
}

std::unique_ptr<icu::RegexMatcher> PythonRegex::matcher(const icu::UnicodeString& text) const {
  UErrorCode status = U_ZERO_ERROR;
  std::unique_ptr<icu::RegexMatcher> matcher(pattern_->matcher(text, status));
  TESSERA_CHECK(U_SUCCESS(status), "ICU: {}", u_errorName(status));
  matcher->setTimeLimit(kMaxPythonTime, status);
  return matcher;
}

std::optional<PythonRegex::Match> PythonRegex::match(const icu::UnicodeString& text, int32_t position) const {
  UErrorCode status = U_ZERO_ERROR;
  const auto matcher = this->matcher(text);
  return match_of(*matcher, matcher->lookingAt(position, status), status);
}

std::optional<PythonRegex::Match> PythonRegex::search(const icu::UnicodeString& text,
                                                      int32_t position) const {
  UErrorCode status = U_ZERO_ERROR;
  const auto matcher = this->matcher(text);
  return match_of(*matcher, matcher->find(position, status), status);
}

icu::UnicodeString PythonRegex::replace_all(const icu::UnicodeString& text,
                                            const icu::UnicodeString& replacement) const {
  UErrorCode status = U_ZERO_ERROR;
  const auto matcher = this->matcher(text);
  icu::UnicodeString result;
  // RegexMatcher::replaceAll() treats a search that fails like one that finds nothing.
  while (matcher->find(status)) matcher->appendReplacement(result, replacement, status);
  require_success(status);
  matcher->appendTail(result);
  return result;
}

RegexRules::RegexRules(std::span<const RegexRule> rules) {
  for (const RegexRule& rule : rules) rules_.push_back({PythonRegex(rule.pattern), rule.replacement});
}

icu::UnicodeString RegexRules::apply(icu::UnicodeString text) const {
  for (const auto& [regex, replacement] : rules_) text = regex.replace_all(text, replacement);
  return text;
}

}  // namespace tessera::text
