#include "plan/mlir_text.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "core/text.h"

namespace tessera::plan {
namespace {

char partner_of(char open) {
  return open == '(' ? ')' : open == '[' ? ']' : open == '{' ? '}' : '>';
}

}  // namespace

bool is_mlir_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == '$';
}

void MlirText::fail_at(size_t place, const std::string& what) const {
  constexpr size_t kMostShown = 200;  // of a message, which may quote a name
  const std::string_view before = text_.substr(0, place);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  input_error(fmt::format("{}: line {}", where_, line), "{}", printable(cut_utf8(what, kMostShown)));
}

void MlirText::skip_space() {
  for (; !is_at_end(); ++place_) {
    const char c = text_[place_];
    if (c == '/' && begins_with("//")) {
      place_ = std::min(text_.find('\n', place_), text_.size() - 1);
    } else if (c != ' ' && c != '\n' && c != '\t' && c != '\r') {
      return;
    }
  }
}

bool MlirText::sees(std::string_view token) {
  skip_space();
  return begins_with(token);
}

bool MlirText::accept(std::string_view token) {
  if (!sees(token)) return false;
  step(token.size());
  return true;
}

void MlirText::expect(std::string_view token) {
  if (accept(token)) return;
  if (is_at_end()) fail(fmt::format("the text ends before '{}'", token));
  constexpr size_t kShown = 20;
  const std::string_view found = cut_utf8(text_.substr(place_, text_.find('\n', place_) - place_), kShown);
  fail(fmt::format("'{}' is missing before '{}'", token, found));
}

std::string_view MlirText::word() {
  skip_space();
  const size_t begin = place_;
  while (!is_at_end() && is_mlir_word(text_[place_])) ++place_;
  return since(begin);
}

std::string_view MlirText::string() {
  expect("\"");
  const size_t begin = place_;
  while (true) {
    const size_t end = text_.find('"', place_);
    if (end == std::string_view::npos) fail_at(begin, "the text ends within a string");
    size_t escapes = 0;
    while (end - escapes > begin && text_[end - escapes - 1] == '\\') ++escapes;
    place_ = end + 1;
    if (escapes % 2 == 0) return text_.substr(begin, end - begin);
  }
}

std::string_view MlirText::name() {
  if (next() == '"') return string();
  const size_t begin = place_;
  while (!is_at_end() && (is_mlir_word(text_[place_]) || text_[place_] == '-')) ++place_;
  if (place_ == begin) fail("a name is missing");
  return since(begin);
}

int64_t MlirText::number() {
  const std::string_view digits = word();
  int64_t value = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value < 0)
    fail(fmt::format("'{}' is no number that is read here", digits));
  return value;
}

std::string_view MlirText::group() {
  skip_space();
  const size_t begin = place_;
  if (is_at_end() || std::string_view("([{<").find(next()) == std::string_view::npos)
    fail("a bracket is missing");
  std::string closing;
  do {
    if (is_at_end()) fail_at(begin, fmt::format("'{}' is not closed", text_[begin]));
    const char c = text_[place_];
    switch (c) {
      case '"':
        string();
        continue;
      case '(':
      case '[':
      case '{':
      case '<':
        closing += partner_of(c);
        break;
      case ')':
      case ']':
      case '}':
      case '>':
        if (closing.empty() || closing.back() != c) fail(fmt::format("'{}' closes nothing", c));
        closing.pop_back();
        break;
      case '-':
        if (begins_with("->")) ++place_;
        break;
      default:
        break;
    }
    ++place_;
  } while (!closing.empty());
  return since(begin);
}

std::string_view MlirText::location() {
  constexpr std::string_view kWord = "loc";
  if (!sees("loc(")) return {};
  step(kWord.size());
  const std::string_view found = group();
  return found.substr(1, found.size() - 2);
}

void MlirText::skip_line() {
  while (!is_at_end() && next() != '\n') {
    const char c = next();
    if (c == '"') {
      string();
    } else if (c == '(' || c == '[' || c == '{' || c == '<') {
      group();
    } else {
      step();
    }
  }
}

}  // namespace tessera::plan
