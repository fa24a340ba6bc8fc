// The regular expressions of a tokenizer.json, carried out by ICU.
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

  // `pattern` as translate_pattern() takes it. Throws Error(kInput) with `where` when it is not one.
  Regex(std::string_view pattern, const std::string& where);
  // Matches `text` (UTF-8, not empty) itself.
  static Regex of_text(std::string_view text, const std::string& where);

  // The matches in `text` (well-formed UTF-8), which do not overlap, from left to right; an empty one does
  // not follow another at once. Throws Error(kInput) when the pattern backtracks for seconds.
  std::vector<Match> find_all(std::string_view text) const;

 private:
  struct Compiled;

  Regex() = default;
  void compile(const std::string& pattern);

  std::shared_ptr<const Compiled> compiled_;
  std::string where_;
};

}  // namespace tessera::text
