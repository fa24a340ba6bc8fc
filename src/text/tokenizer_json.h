// The vocabulary in a `tokenizer.json`, which transformers saves in place of a SentencePiece file. Format:
// https://github.com/huggingface/tokenizers
#pragma once

#include "core/json.h"
#include "text/sentencepiece_model.h"

namespace tessera::text {

// Reads the pieces, scores and normalisation rules of the document. It ignores the splitting and special
// tokens, which T5's tokenizer class defines itself. Throws Error(kInput) if the model is damaged or not a
// Unigram model.
SentencePieceModel parse_tokenizer_json(const JsonConfig& document);

}  // namespace tessera::text
