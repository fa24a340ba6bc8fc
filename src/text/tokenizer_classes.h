// The settings that transformers' tokenizer classes fix themselves, with or without a folder's
// tokenizer.json.
#pragma once

#include <string_view>

namespace tessera::text {

struct TokenizerClass {
  std::string_view name;
  // `normalizer`, `pre_tokenizer` and `model` as in tokenizer.json, without vocabulary and merges, and the
  // default `special_tokens` for those that no file names.
  std::string_view description;
  bool surrounds_text;   // BOS and EOS surround every text
  bool maps_to_unknown;  // text without a token becomes the unknown token; else it is dropped
  bool finds_raw;        // special tokens are matched in the raw text, whatever the files say
};

// Finds a class by name, with or without a final "Fast"; nullptr if it takes all settings from
// tokenizer.json.
const TokenizerClass* find_tokenizer_class(std::string_view name);

}  // namespace tessera::text
