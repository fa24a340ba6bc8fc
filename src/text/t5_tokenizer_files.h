// What a checkpoint's `tokenizer/` folder says of a T5 tokenizer, as transformers 5 reads it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "text/added_tokens.h"
#include "text/sentencepiece_model.h"

namespace tessera::text {

struct T5TokenizerFiles {
  std::string where;         // the vocabulary's file, for errors
  SentencePieceModel model;  // with the sentinels `<extra_id_N>`, where they have to be appended
  std::vector<AddedToken>
      tokens;             // recognised in text; each text once, in the order in which new ones get ids
  std::string end_token;  // `</s>`
};

// Reads `tokenizer.json`, or else `spiece.model`; special tokens from tokenizer_config.json, or else from
// what older versions saved beside it. Throws Error(kInput) when no vocabulary is there, or a file is damaged
// or another kind of tokenizer's.
T5TokenizerFiles read_t5_tokenizer_files(const std::filesystem::path& folder);

}  // namespace tessera::text
