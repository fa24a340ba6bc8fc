// The description of a T5 tokenizer in a checkpoint's `tokenizer/` folder, as transformers 5 reads it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "text/sentencepiece_model.h"
#include "text/tokens.h"

namespace tessera::text {

struct T5TokenizerFiles {
  std::string where;         // the vocabulary's file, for errors
  SentencePieceModel model;  // including the sentinels `<extra_id_N>`, which spiece.model lacks
  std::vector<AddedToken>
      tokens;             // recognised in text; each text once, in the order in which new ones get ids
  std::string end_token;  // `</s>`
  TruncationSide truncation_side = TruncationSide::kRight;
};

// Reads `tokenizer.json`, or else `spiece.model`, and the special tokens from tokenizer_config.json, or else
// from the files of older versions. Throws Error(kInput) if there is no vocabulary, or a file is damaged or
// belongs to another kind of tokenizer.
T5TokenizerFiles read_t5_tokenizer_files(const std::filesystem::path& folder);

}  // namespace tessera::text
