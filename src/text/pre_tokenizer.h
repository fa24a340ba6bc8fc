// The split of a text into pieces that tokens do not cross: the `pre_tokenizer` of a tokenizer.json.
// https://huggingface.co/docs/tokenizers/api/pre-tokenizers
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/json.h"
#include "text/regex.h"

namespace tessera::text {

class PreTokenizer {
 public:
  // Does not split.
  PreTokenizer() = default;
  // `description` is null, or of type Split, ByteLevel, or Sequence of these. Throws Error(kInput) with
  // `where` for another type or a malformed description.
  PreTokenizer(const Json& description, const std::string& where);

  // Returns the non-empty pieces of `text` (well-formed UTF-8); after ByteLevel they are in the byte
  // alphabet.
  std::vector<std::string> split(std::string_view text) const;

 private:
  // How the delimiters are treated: the matches of a pattern, or, if `inverted`, the text between them.
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  struct Split {
    Regex pattern;
    Behavior behavior;
    bool inverted;

    void operator()(std::string_view text, std::vector<std::string>& pieces) const;
  };
  struct ByteLevel {
    bool add_prefix_space;
    std::optional<Split> split;  // by GPT-2's pattern

    void operator()(std::string_view text, std::vector<std::string>& pieces) const;
  };

  static Split parse_split(const JsonConfig& part);
  static ByteLevel parse_byte_level(const JsonConfig& part);

  std::vector<std::variant<Split, ByteLevel>> steps_;
};

}  // namespace tessera::text
