// Regular expressions, executed by ICU: those of a tokenizer.json, and those of Python.
#pragma once

#include <unicode/regex.h>
#include <unicode/unistr.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

// The patterns of a tokenizer.json, whose syntax is Oniguruma's
// (https://github.com/kkos/oniguruma/blob/master/doc/RE).
class Regex {
 public:
  struct Match {
    size_t begin, end;  // bytes
  };

  // `pattern` may contain literals, sets, \s, \S, the categories \p{L}, \p{Lu}, \p{Ll}, \p{Lt}, \p{Lm},
  // \p{Lo}, \p{M} and \p{N}, groups, lookahead, (?i:...), alternatives and repetitions. Throws Error(kInput)
  // with `where`, naming any other construct, and if it is not valid.
  Regex(std::string_view pattern, const std::string& where);
  // Matches `text` (UTF-8, not empty) literally.
  static Regex of_text(std::string_view text, const std::string& where);

  // Returns the non-overlapping matches in `text` (well-formed UTF-8) from left to right; an empty match does
  // not directly follow another. Throws Error(kInput) if the pattern backtracks for seconds.
  std::vector<Match> find_all(std::string_view text) const;

 private:
  Regex() = default;
  void compile(const std::string& pattern);  // of ICU

  std::shared_ptr<const icu::RegexPattern> pattern_;
  std::string where_;
};

// Regular expressions whose character classes have the same meaning as in Python's `re`.
class PythonRegex {
 public:
  struct Match {
    int32_t begin, end;        // UTF-16 units
    icu::UnicodeString group;  // the first group; empty if the pattern has none
  };

  // `pattern` has ICU's syntax, but \b, \w, \W, \s, \S and $ are Python's. Must be valid.
  explicit PythonRegex(std::string_view pattern);

  // These throw Error(kUsage) for a text on which the pattern backtracks for seconds.
  std::optional<Match> match(const icu::UnicodeString& text, int32_t position) const;  // begins at `position`
  std::optional<Match> search(const icu::UnicodeString& text, int32_t position) const;
  // In `replacement`, $1 is the first group.
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
