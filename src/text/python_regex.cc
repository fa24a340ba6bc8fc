#include "text/python_regex.h"

#include "core/error.h"

namespace tessera::text {
namespace {

constexpr int32_t kMaxTime = 20'000;  // in ICU's unit of about 10,000 steps

// str.isalnum() and the underscore. ICU's own \w has marks and lacks most numbers.
constexpr std::string_view kWord = R"(\p{L}\p{N}_)";
// str.isspace(). ICU's own \s lacks the separators of ASCII.
constexpr std::string_view kSpace = R"(\p{Z}\t-\r\u001c-\u001f\u0085)";

// What a letter after a backslash stands for in ICU's syntax, or nothing if it means the same there.
std::string class_of(char letter) {
  switch (letter) {
    case 'w':
      return fmt::format("[{}]", kWord);
    case 'W':
      return fmt::format("[^{}]", kWord);
    case 's':
      return fmt::format("[{}]", kSpace);
    case 'S':
      return fmt::format("[^{}]", kSpace);
    // ICU's own \b looks through marks.
    case 'b':
      return fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", kWord);
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

PythonRegex::Match match_of(const icu::RegexMatcher& matcher) {
  UErrorCode status = U_ZERO_ERROR;
  PythonRegex::Match match{matcher.start(status), matcher.end(status), {}};
  if (matcher.groupCount() > 0) match.group = matcher.group(1, status);
  require_success(status);
  return match;
}

}  // namespace

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
  matcher->setTimeLimit(kMaxTime, status);
  return matcher;
}

std::optional<PythonRegex::Match> PythonRegex::match(const icu::UnicodeString& text, int32_t position) const {
  UErrorCode status = U_ZERO_ERROR;
  const auto matcher = this->matcher(text);
  const bool found = matcher->lookingAt(position, status);
  require_success(status);
  if (!found) return std::nullopt;
  return match_of(*matcher);
}

std::optional<PythonRegex::Match> PythonRegex::search(const icu::UnicodeString& text,
                                                      int32_t position) const {
  UErrorCode status = U_ZERO_ERROR;
  const auto matcher = this->matcher(text);
  const bool found = matcher->find(position, status);
  require_success(status);
  if (!found) return std::nullopt;
  return match_of(*matcher);
}

icu::UnicodeString PythonRegex::replace_all(const icu::UnicodeString& text,
                                            const icu::UnicodeString& replacement) const {
  UErrorCode status = U_ZERO_ERROR;
  const auto matcher = this->matcher(text);
  icu::UnicodeString result;
  // RegexMatcher::replaceAll() takes a search that fails for one that finds nothing.
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
