// The vocabulary of a SentencePiece model file (`spiece.model`), which is a protocol-buffers message.
// Fields: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/unigram.h"

namespace tessera::text {

struct SentencePieceModel {
  std::vector<Piece> pieces;         // in the order of their ids
  std::vector<std::string> symbols;  // the pieces that are not text: control and user-defined ones
  std::string charsmap;              // precompiled normalisation rules; empty if there are none
};

// Throws Error(kInput) with `where` if the message is truncated or damaged, or its model is not a Unigram
// model.
SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& where);

}  // namespace tessera::text
