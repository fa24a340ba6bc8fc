// CLIP and its tokenizer as a text encoder of a family. The network is in models/clip.h.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "models/clip.h"
#include "models/family.h"
#include "text/bpe_tokenizer.h"

namespace tessera::models {

// What a family needs from CLIP.
struct ClipPromptOptions {
  bool has_projection = false;     // the class is CLIPTextModelWithProjection, which also gives kPooled
  int64_t skip = 0;                // last layers that are always skipped, besides Prompt::clip_skip
  bool normed = true;              // whether kTokens have passed through the final norm
  bool zeros_when_absent = false;  // whether Prompt::is_absent gives zeros
};

// Gives kTokens, padded to the length that the model was trained with, the same for every prompt.
class ClipTextEncoder final : public TextEncoder {
 public:
  // Reads two folders.
  ClipTextEncoder(const std::filesystem::path& tokenizer, const std::filesystem::path& encoder,
                  const ClipPromptOptions& own, const LoadOptions& options, LoadStatistics& statistics);

  std::vector<Conditioning> encode(const std::vector<Prompt>& prompts, int64_t max_length) override;

 private:
  Conditioning zeros() const;

  ClipPromptOptions own_;
  text::BpeTokenizer tokenizer_;
  CLIPTextEncoder encoder_;
  int64_t length_;  // in tokens
};

// The options of the text model, which the file of a whole CLIP model has under a key of its own.
JsonConfig clip_text_config(const JsonConfig& file);

}  // namespace tessera::models
