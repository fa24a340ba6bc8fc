// The vocabulary and the normalisation rules of a SentencePiece model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/unigram.h"

namespace tessera::text {

struct SentencePieceModel {
  std::vector<Piece> pieces;         // in the order of their ids
  std::vector<std::string> symbols;  // the pieces that are not text: control and user-defined ones
  std::string charsmap;              // precompiled normalisation rules; empty if there are none
};

// Parses the file `spiece.model`, a protocol-buffers message with the fields of
// https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto. Throws Error(kInput)
// with `where` if it is truncated or damaged, or its model is not a Unigram model.
SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& where);

// Parses a `tokenizer.json` (https://github.com/huggingface/tokenizers), which transformers saves in place of
// such a file. Splitting and special tokens are ignored, because T5's tokenizer class defines them itself.
// Throws Error(kInput) if the model is damaged or not a Unigram model.
SentencePieceModel parse_tokenizer_json(const JsonConfig& document);

// Precompiled normalisation rules, applied as in Hugging Face's tokenizers. Format: a 32-bit length (little
// endian), a double-array trie of that many bytes (the darts-clone layout, 32-bit units) from source strings
// to offsets, then the replacements, each terminated by a zero byte.
// https://github.com/google/sentencepiece/blob/master/src/normalizer.cc
class Charsmap {
 public:
  // Has no rules: normalize() changes nothing.
  Charsmap() = default;
  // Throws Error(kInput) with `where` if `blob` is not such a map.
  Charsmap(std::string_view blob, const std::string& where);

  // Normalises `text` (well-formed UTF-8) by grapheme. A grapheme of fewer than six bytes that starts with a
  // source string is replaced as a whole by the replacement of the shortest such string; otherwise the same
  // is done with each of its characters. SentencePiece itself uses the longest match and keeps what follows
  // it; checkpoints use the ids of transformers.
  std::string normalize(std::string_view text) const;

 private:
  std::optional<std::string_view> replacement(std::string_view text) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace tessera::text
