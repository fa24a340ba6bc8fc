// The description of a byte-level BPE tokenizer in a checkpoint's folder, as transformers 5 reads it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/bpe.h"
#include "text/tokens.h"

namespace tessera::text {

struct BpeTokenizerFiles {
  std::string where;  // the vocabulary's file, for errors
  TokenMap vocabulary;
  std::vector<Merge> merges;
  BpeOptions options;
  Json normalizer, pre_tokenizer, post_processor;  // as in tokenizer.json; null: none
  // The tokens recognised in text; each text once, in the order in which new ones get ids.
  std::vector<AddedToken> tokens;
  std::vector<std::string> before, after;  // the tokens around a text if there is no `post_processor`
  std::optional<std::string> pad_token;
  bool pads_left = false;
  TruncationSide truncation_side = TruncationSide::kRight;
  int64_t model_max_length = 0;  // maximum number of ids; a very large number if no file sets it
};

// Reads `tokenizer.json`, or else `vocab.json` and `merges.txt`, and the special tokens from
// tokenizer_config.json and older files. `tokenizer_class` is the class that a pipeline's model_index.json
// names ("CLIPTokenizer"); if empty, the class in tokenizer_config.json is used. Throws Error(kInput) with
// file and place if a file is missing or damaged, or belongs to another kind of tokenizer.
BpeTokenizerFiles read_bpe_tokenizer_files(const std::filesystem::path& folder,
                                           const std::string& tokenizer_class);

// Reads a tokenizer.json alone. Throws Error(kInput) as above.
BpeTokenizerFiles parse_bpe_tokenizer_json(const JsonConfig& document);

// The settings that a class of tokenizers in transformers fixes itself, with or without a folder's
// tokenizer.json.
struct TokenizerClass {
  std::string_view name;
  // `normalizer`, `pre_tokenizer` and `model` as in tokenizer.json, without vocabulary and merges, and the
  // `special_tokens` used where the files name none.
  std::string_view description;
  bool surrounds_text;   // BOS and EOS surround every text
  bool maps_to_unknown;  // text without a token becomes the unknown token; otherwise it is dropped
  bool finds_raw;        // special tokens are matched in the raw text, whatever the files contain
};

// Finds a class by name, with or without a final "Fast"; nullptr if it takes all settings from
// tokenizer.json.
const TokenizerClass* find_tokenizer_class(std::string_view name);

}  // namespace tessera::text
