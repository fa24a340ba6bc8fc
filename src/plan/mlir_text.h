// A cursor over a text in MLIR's form: its words, strings and brackets (mlir.llvm.org/docs/LangRef). It
// copies nothing: everything that it returns is a part of the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::plan {

// Whether a character can be part of a word: a letter, a digit, or one of "_.$".
bool is_mlir_word(char c);

class MlirText {
 public:
  // Both must outlive this object. Errors are Error(kInput) that name `where` and the line.
  MlirText(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  size_t place() const { return place_; }
  // The text from a place up to the current one.
  std::string_view since(size_t begin) const { return text_.substr(begin, place_ - begin); }

  void skip_space();  // including line ends and comments
  bool is_at_end() const { return place_ >= text_.size(); }
  // The next character, '\0' at the end; step() moves past it.
  char next() const { return is_at_end() ? '\0' : text_[place_]; }
  void step(size_t characters = 1) { place_ += characters; }
  bool begins_with(std::string_view token) const { return text_.substr(place_).starts_with(token); }

  // The following functions skip space first.
  bool sees(std::string_view token);
  bool accept(std::string_view token);
  void expect(std::string_view token);
  std::string_view word();    // may be empty
  std::string_view string();  // the contents of quotes, with escapes
  std::string_view name();    // a word or a string after '@', '%' or '#'
  int64_t number();           // at least 0
  std::string_view group();   // a bracket with everything in it
  // The contents of "loc(...)"; empty if the text does not continue with it.
  std::string_view location();
  void skip_line();  // and everything in its brackets

  [[noreturn]] void fail(const std::string& what) const { fail_at(place_, what); }
  [[noreturn]] void fail_at(size_t place, const std::string& what) const;

 private:
  std::string_view text_;
  const std::string& where_;
  size_t place_ = 0;
};

}  // namespace tessera::plan
