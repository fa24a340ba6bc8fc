// Reads the parts of a tokenizer.json: normalizer, pre-tokenizer and post-processor. Each is described by an
// object with a type; the object may be a sequence of such objects.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/json.h"
#include "text/regex.h"

namespace tessera::text {

// The normalisation of a text before it is split: the `normalizer`.
// https://huggingface.co/docs/tokenizers/api/normalizers
class Normalizer {
 public:
  // Changes nothing.
  Normalizer() = default;
  // `description` is null, or of type NFC, Lowercase, Replace, or Sequence of these. Throws Error(kInput)
  // with `where` for another type or a malformed description.
  Normalizer(const Json& description, const std::string& where);

  // `text` must be well-formed UTF-8.
  std::string normalize(std::string_view text) const;

 private:
  struct Nfc {
    std::string operator()(std::string_view text) const;
  };
  struct Lowercase {
    std::string operator()(std::string_view text) const;
  };
  struct Replace {
    Regex pattern;
    std::string content;

    std::string operator()(std::string_view text) const;
  };

  std::vector<std::variant<Nfc, Lowercase, Replace>> steps_;
};

// The alphabet of byte-level vocabularies: a printable character for each byte, so that any text consists of
// 256 characters. Radford et al., "Language Models are Unsupervised Multitask Learners", 2019; the table is
// bytes_to_unicode() of https://github.com/openai/gpt-2/blob/master/src/encoder.py. Returns the characters of
// `bytes` as UTF-8.
std::string to_byte_alphabet(std::string_view bytes);

// The split of a text into pieces that tokens do not cross: the `pre_tokenizer`.
// https://huggingface.co/docs/tokenizers/api/pre-tokenizers
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

// The special tokens around a text: the `post_processor`.
// https://huggingface.co/docs/tokenizers/api/post-processors
struct SurroundingIds {
  std::vector<int64_t> before, after;
};

// Parses the ids that `description` adds to a single text. It is null, or of type ByteLevel (which adds
// none), RobertaProcessing, BertProcessing, TemplateProcessing, or Sequence of these. Throws Error(kInput)
// with `where` for another type or a malformed description.
SurroundingIds parse_post_processor(const Json& description, const std::string& where);

}  // namespace tessera::text
