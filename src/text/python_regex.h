// Regular expressions whose character classes mean what they mean in Python's `re`, executed by ICU.
#pragma once

#include <unicode/regex.h>
#include <unicode/unistr.h>

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace tessera::text {

class PythonRegex {
 public:
  struct Match {
    int32_t begin, end;        // UTF-16 units
    icu::UnicodeString group;  // the first, or empty if the pattern has none
  };

  // `pattern` is of ICU, but \b, \w, \W, \s, \S and $ are Python's. Must be valid.
  explicit PythonRegex(std::string_view pattern);

  // These throw Error(kUsage) for a text on which the pattern backtracks for seconds.
  std::optional<Match> match(const icu::UnicodeString& text, int32_t position) const;  // begins at `position`
  std::optional<Match> search(const icu::UnicodeString& text, int32_t position) const;
  // In `replacement` $1 is the first group.
  icu::UnicodeString replace_all(const icu::UnicodeString& text, const icu::UnicodeString& replacement) const;

 private:
  std::unique_ptr<icu::RegexMatcher> matcher(const icu::UnicodeString& text) const;

  std::unique_ptr<icu::RegexPattern> pattern_;
};

struct RegexRule {
  const char* pattern;  // of PythonRegex
  const char16_t* replacement;
};

// Rules that are applied one after another.
class RegexRules {
 public:
  explicit RegexRules(std::span<const RegexRule> rules);
  icu::UnicodeString apply(icu::UnicodeString text) const;

 private:
  struct Compiled {
    PythonRegex regex;
    icu::UnicodeString replacement;
  };
  std::vector<Compiled> rules_;
};

}  // namespace tessera::text
