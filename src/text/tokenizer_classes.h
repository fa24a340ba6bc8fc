// What transformers' tokenizer classes set themselves, whatever a folder's tokenizer.json says of it, and
// without one.
#pragma once

#include <string_view>

namespace tessera::text {

struct TokenizerClass {
  std::string_view name;
  // As tokenizer.json has it: `normalizer`, `pre_tokenizer` and `model`, without vocabulary and merges. Also
  // `special_tokens`, those that no file names.
  std::string_view description;
  bool surrounds_text;   // BOS and EOS stand around every text
  bool maps_to_unknown;  // what has no token becomes the one for the unknown; else it is left out
  bool finds_raw;        // special tokens are looked for in the text as it comes, whatever the files say
};

// By the name of the class, with or without "Fast" at its end; nullptr when it takes all from tokenizer.json.
const TokenizerClass* find_tokenizer_class(std::string_view name);

}  // namespace tessera::text
