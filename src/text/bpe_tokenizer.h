// The tokenizer of CLIP, Qwen2, Llama 3 and others, with the ids that transformers gives: text is cut at the
// special tokens that it spells out, normalised, split into pieces whose bytes become characters, and each
// piece is encoded by byte-pair encoding. How it is normalised and split stands in the folder's
// tokenizer.json, or follows from the class of the tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/bpe_tokenizer_files.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"

namespace tessera::text {

class BpeTokenizer {
 public:
  // `folder` is the `tokenizer/` of a checkpoint, `tokenizer_class` as for read_bpe_tokenizer_files(). Throws
  // Error(kInput) as that does.
  explicit BpeTokenizer(const std::filesystem::path& folder, const std::string& tokenizer_class = {})
      : BpeTokenizer(read_bpe_tokenizer_files(folder, tokenizer_class)) {}
  explicit BpeTokenizer(BpeTokenizerFiles files);

  // The ids of `text` between those that stand around every text: BOS and EOS for CLIP. When that makes more
  // than `max_length`, the last ones of the text are cut, with a warning that says how many were. Throws
  // Error(kUsage) for text that is not UTF-8.
  std::vector<int64_t> encode(std::string_view text, int64_t max_length) const;

  // The same, filled up with pad tokens to `length` ids. Throws Error(kInput) when no file names a pad token.
  std::vector<int64_t> encode_padded(std::string_view text, int64_t length) const;

  // What the model takes at most; a very large number when no file says so.
  int64_t model_max_length() const { return model_max_length_; }
  std::optional<int64_t> pad_id() const { return pad_id_; }
  // One more than the largest id.
  int64_t vocabulary_size() const { return vocabulary_size_; }

 private:
  // Gives the tokens of `files` their ids.
  void add_tokens(const BpeTokenizerFiles& files);
  void encode_between_tokens(std::string_view text, std::vector<int64_t>& ids) const;

  std::string where_;
  Bpe bpe_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  SurroundingIds surrounding_;
  AddedTokens raw_tokens_;         // looked for in the text as it comes
  AddedTokens normalized_tokens_;  // looked for in the normalised text
  std::optional<int64_t> pad_id_;
  bool pads_left_;
  int64_t model_max_length_;
  int64_t vocabulary_size_;
};

}  // namespace tessera::text
