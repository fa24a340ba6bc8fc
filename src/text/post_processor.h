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

// What `description` puts around one text: it is null, or of the type ByteLevel (which puts nothing there),
// RobertaProcessing, BertProcessing, TemplateProcessing, or Sequence of these. Throws Error(kInput) with
// `where` that names another type, or what is wrong.
SurroundingIds parse_post_processor(const Json& description, const std::string& where);

}  // namespace tessera::text
