// The regular expressions of a tokenizer.json, executed by ICU.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

class Regex {
 public:
  struct Match {
    size_t begin, end;  // bytes
  };

  // `pattern` has the syntax of translate_pattern(). Throws Error(kInput) with `where` if it is not valid.
  Regex(std::string_view pattern, const std::string& where);
  // Matches `text` (UTF-8, not empty) literally.
  static Regex of_text(std::string_view text, const std::string& where);

  // Returns the non-overlapping matches in `text` (well-formed UTF-8) from left to right; an empty match does
  // not directly follow another. Throws Error(kInput) if the pattern backtracks for seconds.
  std::vector<Match> find_all(std::string_view text) const;

 private:
  struct Compiled;

  Regex() = default;
  void compile(const std::string& pattern);

  std::shared_ptr<const Compiled> compiled_;
  std::string where_;
};

}  // namespace tessera::text
