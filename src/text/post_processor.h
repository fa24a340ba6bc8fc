// The special tokens around a text: the `post_processor` of a tokenizer.json.
// https://huggingface.co/docs/tokenizers/api/post-processors
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/json.h"

namespace tessera::text {

struct SurroundingIds {
  std::vector<int64_t> before, after;
};

// Parses the ids that `description` adds to a single text. It is null, or of type ByteLevel (which adds
// none), RobertaProcessing, BertProcessing, TemplateProcessing, or Sequence of these. Throws Error(kInput)
// with `where` for another type or a malformed description.
SurroundingIds parse_post_processor(const Json& description, const std::string& where);

}  // namespace tessera::text
