// The normalisation of a text before it is split: the `normalizer` of a tokenizer.json.
// https://huggingface.co/docs/tokenizers/api/normalizers
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/json.h"
#include "text/regex.h"

namespace tessera::text {

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

}  // namespace tessera::text
