#include "text/pattern_syntax.h"

#include <cctype>

#include "core/error.h"
#include "text/unicode.h"
#include "text/unicode_versions.h"

namespace tessera::text {
namespace {

// Reads a pattern from left to right.
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
      case '$':  // differs between the syntaxes
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

  // {2}, {2,} or {2,3}
  std::string interval() {
    const size_t end = rest().find('}');
    const std::string_view bounds = rest().substr(1, end == std::string_view::npos ? 0 : end - 1);
    const size_t comma = std::min(bounds.find(','), bounds.size());
    const bool valid = comma > 0 && bounds.find_first_not_of("0123456789") >= comma &&
                       bounds.find_first_not_of("0123456789", comma + 1) == std::string_view::npos;
    const std::string_view after = valid ? rest().substr(end + 1) : "";
    // A following sign makes it lazy or possessive in ICU's syntax only.
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

}  // namespace

std::string translate_pattern(std::string_view pattern, const std::string& where) {
  if (pattern.empty()) input_error(where, "an empty pattern");
  return PatternReader(pattern, where).translate();
}

std::string escape_pattern(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x80 && std::isalnum(static_cast<unsigned char>(c)) == 0)
      result += '\\';
    result += c;
  }
  return result;
}

}  // namespace tessera::text
