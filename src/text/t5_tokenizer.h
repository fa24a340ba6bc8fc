// T5's tokenizer, with the ids that transformers gives: text is cut at the special tokens that it spells out,
// normalised, cut at white space, and each word (after a U+2581 that stands for the space) is segmented by a
// Unigram model. The SentencePiece library gives other ids: it knows no special tokens in text, normalises by
// other rules of precedence, and sums scores in single precision, which decides between segmentations of
// equal score.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/charsmap.h"
#include "text/t5_tokenizer_files.h"
#include "text/unigram.h"

namespace tessera::text {

class T5Tokenizer {
 public:
  // `folder` is the `tokenizer/` of a checkpoint. Throws Error(kInput) as read_t5_tokenizer_files() does.
  explicit T5Tokenizer(const std::filesystem::path& folder) : T5Tokenizer(read_t5_tokenizer_files(folder)) {}
  explicit T5Tokenizer(T5TokenizerFiles files);

  // The ids of `text` and then `</s>`. When that makes more than `max_length` (>= 1), the last ones before
  // `</s>` are cut, with a warning that says how many were. Throws Error(kUsage) for text that is not UTF-8.
  std::vector<int64_t> encode(std::string_view text, int64_t max_length) const;

  // One more than the largest id.
  int64_t vocabulary_size() const { return vocabulary_size_; }

 private:
  void encode_between_tokens(std::string_view text, std::vector<int64_t>& ids) const;
  void encode_words(std::string_view text, std::vector<int64_t>& ids) const;

  Charsmap charsmap_;
  Unigram unigram_;
  AddedTokens raw_tokens_;         // looked for in the text as it comes
  AddedTokens normalized_tokens_;  // looked for in the normalised text
  int64_t end_id_ = 0;
  int64_t vocabulary_size_ = 0;
};

}  // namespace tessera::text
