// T5's tokenizer, with the same ids as transformers: text is split at the special tokens that it contains,
// normalised, split at white space, and each word (after a U+2581 that stands for the space) is segmented by
// a Unigram model. The SentencePiece library gives other ids: it recognises no special tokens in text,
// normalises with other rules of precedence, and sums scores in single precision, which decides between
// segmentations of equal score.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "text/sentencepiece_model.h"
#include "text/t5_tokenizer_files.h"
#include "text/tokens.h"
#include "text/unigram.h"

namespace tessera::text {

class T5Tokenizer {
 public:
  // `folder` is the `tokenizer/` of a checkpoint. Throws Error(kInput) as read_t5_tokenizer_files() does.
  explicit T5Tokenizer(const std::filesystem::path& folder) : T5Tokenizer(read_t5_tokenizer_files(folder)) {}
  explicit T5Tokenizer(T5TokenizerFiles files);

  // Returns the ids of `text` followed by `</s>`. If there are more than `max_length` (>= 1), ids before
  // `</s>` are cut as truncate() does. Throws Error(kUsage) if `text` is not UTF-8.
  std::vector<int64_t> encode(std::string_view text, int64_t max_length) const;

  // One more than the largest id.
  int64_t vocabulary_size() const { return vocabulary_size_; }

 private:
  void encode_words(std::string_view text, std::vector<int64_t>& ids) const;

  std::string where_;
  TruncationSide truncation_side_;
  Charsmap charsmap_;
  Unigram unigram_;
  AddedTokens tokens_;
  int64_t end_id_ = 0;
  int64_t vocabulary_size_ = 0;
};

}  // namespace tessera::text
