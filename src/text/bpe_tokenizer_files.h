// What a checkpoint's folder says of a byte-level BPE tokenizer, as transformers 5 reads it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "text/added_tokens.h"
#include "text/bpe.h"

namespace tessera::text {

struct BpeTokenizerFiles {
  std::string where;  // the vocabulary's file, for errors
  TokenMap vocabulary;
  std::vector<Merge> merges;
  BpeOptions options;
  Json normalizer, pre_tokenizer, post_processor;  // as tokenizer.json has them; null: none
  // Recognised in text; each text once, in the order in which new ones get ids.
  std::vector<AddedToken> tokens;
  std::vector<std::string> before, after;  // the tokens around a text, where no `post_processor` tells
  std::optional<std::string> pad_token;
  bool pads_left = false;
  int64_t model_max_length = 0;  // of ids; a very large number when no file says so
};

// Reads `tokenizer.json`, or else `vocab.json` and `merges.txt`, and what tokenizer_config.json and older
// files say of special tokens. `tokenizer_class` is what a pipeline's model_index.json names
// ("CLIPTokenizer"); empty, what tokenizer_config.json does. Throws Error(kInput) with file and place when a
// file is missing, damaged or another kind of tokenizer's.
BpeTokenizerFiles read_bpe_tokenizer_files(const std::filesystem::path& folder,
                                           const std::string& tokenizer_class);

// What a tokenizer.json says by itself. Throws Error(kInput) as above.
BpeTokenizerFiles parse_bpe_tokenizer_json(const JsonConfig& document);

}  // namespace tessera::text
