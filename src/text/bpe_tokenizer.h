// The tokenizer of CLIP, Qwen2, Llama 3 and others, with the same ids as transformers: text is split at the
// special tokens that it contains, normalised, split into pieces whose bytes become characters, and each
// piece is encoded by byte-pair encoding. Normalisation and splitting are described by the folder's
// tokenizer.json, or follow from the tokenizer's class.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/bpe.h"
#include "text/bpe_tokenizer_files.h"
#include "text/tokenizer_parts.h"
#include "text/tokens.h"

namespace tessera::text {

class BpeTokenizer {
 public:
  // `folder` is the `tokenizer/` of a checkpoint; `tokenizer_class` and errors are as for
  // read_bpe_tokenizer_files().
  explicit BpeTokenizer(const std::filesystem::path& folder, const std::string& tokenizer_class = {})
      : BpeTokenizer(read_bpe_tokenizer_files(folder, tokenizer_class)) {}
  explicit BpeTokenizer(BpeTokenizerFiles files);

  // Returns the ids of `text` with the tokens that surround every text, BOS and EOS for CLIP. If there are
  // more than `max_length`, ids of the text are cut by truncate(); if `prompt` is only a part of the text,
  // its warning shows that part. Throws Error(kUsage) if `text` is not UTF-8.
  std::vector<int64_t> encode(std::string_view text, int64_t max_length,
                              std::optional<std::string_view> prompt = {}) const;

  // The same, padded with pad tokens to `length` ids. Throws Error(kInput) if the files do not name a pad
  // token.
  std::vector<int64_t> encode_padded(std::string_view text, int64_t length) const;

  // Returns `text` with all vectors of a textual inversion: if it contains the added token `<cat>`, and
  // `<cat>_1` and `<cat>_2` are added tokens too, each "<cat>" becomes "<cat> <cat>_1 <cat>_2". As diffusers
  // does, it replaces every occurrence of these letters. Throws as encode() does.
  std::string with_all_vectors(std::string_view text) const;

  // The maximum number of ids that the model accepts; a very large number if no file sets it.
  int64_t model_max_length() const { return model_max_length_; }
  std::optional<int64_t> pad_id() const { return pad_id_; }
  bool pads_left() const { return pads_left_; }
  // One more than the largest id.
  int64_t vocabulary_size() const { return vocabulary_size_; }

 private:
  struct Vectors {  // "<cat>" and "<cat> <cat>_1"
    std::string token, all;
  };

  std::vector<int64_t> ids_of(std::string_view text) const;  // without the surrounding tokens
  // Assigns ids to the tokens of `files`.
  void add_tokens(const BpeTokenizerFiles& files);

  std::string where_;
  Bpe bpe_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  SurroundingIds surrounding_;
  AddedTokens tokens_;
  std::unordered_map<int64_t, Vectors> vectors_;  // of the tokens that have several, by id
  TruncationSide truncation_side_;
  std::optional<int64_t> pad_id_;
  bool pads_left_;
  int64_t model_max_length_;
  int64_t vocabulary_size_;
};

}  // namespace tessera::text
