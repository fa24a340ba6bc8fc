#include "text/regex.h"

#include <unicode/regex.h>
#include <unicode/utext.h>

#include "core/error.h"
#include "text/pattern_syntax.h"

namespace tessera::text {
namespace {

constexpr int32_t kTimeLimit = 10'000;  // in ICU's unit of about 10,000 steps

struct CloseUText {
  void operator()(UText* text) const { utext_close(text); }
};

}  // namespace

struct Regex::Compiled {
  std::unique_ptr<icu::RegexPattern> pattern;
};

Regex::Regex(std::string_view pattern, const std::string& where) : where_(where) {
  compile(translate_pattern(pattern, where));
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
  auto compiled = std::make_shared<Compiled>();
  compiled->pattern.reset(icu::RegexPattern::compile(icu::UnicodeString::fromUTF8(pattern), 0, status));
  if (U_FAILURE(status))
    input_error(where_, "the pattern '{}' is not valid: {}", pattern, u_errorName(status));
  compiled_ = std::move(compiled);
}

std::vector<Regex::Match> Regex::find_all(std::string_view text) const {
  UErrorCode status = U_ZERO_ERROR;
  const std::unique_ptr<UText, CloseUText> content(
      utext_openUTF8(nullptr, text.data(), static_cast<int64_t>(text.size()), &status));
  const std::unique_ptr<icu::RegexMatcher> matcher(compiled_->pattern->matcher(status));
  TESSERA_CHECK(U_SUCCESS(status), "ICU: {}", u_errorName(status));
  matcher->setTimeLimit(kTimeLimit, status);
  matcher->reset(content.get());
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

}  // namespace tessera::text
