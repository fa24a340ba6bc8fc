// The description of a byte-level BPE tokenizer in a checkpoint's folder, as transformers 5 reads it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/truncation.h"

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

}  // namespace tessera::text
