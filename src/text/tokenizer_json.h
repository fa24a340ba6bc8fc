// The vocabulary of a `tokenizer.json`, which transformers saves in place of a SentencePiece file.
// Format: https://github.com/huggingface/tokenizers
#pragma once

#include "core/json.h"
#include "text/sentencepiece_model.h"

namespace tessera::text {

// Pieces, scores and normalisation rules of the document. What else it says of splitting and of special
// tokens is not read: T5's tokenizer class has its own. Throws Error(kInput) when its model is not a Unigram
// one, or damaged.
SentencePieceModel parse_tokenizer_json(const JsonConfig& document);

}  // namespace tessera::text
