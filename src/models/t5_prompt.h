// T5 and its tokenizer as the text encoder of a family. The network is in models/t5.h.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/family.h"
#include "models/loading.h"
#include "models/t5.h"
#include "text/t5_tokenizer.h"

namespace tessera::models {

// Gives kTokens, for each prompt at its true length.
class T5TextEncoder final : public TextEncoder {
 public:
  // Returns the part of a prompt that is tokenized.
  using Caption = std::string (*)(const Prompt&);

  // Reads two folders. Weights are read at each use unless options.stays.
  T5TextEncoder(const std::filesystem::path& tokenizer, const std::filesystem::path& encoder, Caption caption,
                const LoadOptions& options, LoadStatistics& statistics);

  std::vector<Conditioning> encode(const std::vector<Prompt>& prompts, int64_t max_length) override;

 private:
  text::T5Tokenizer tokenizer_;
  Caption caption_;
  std::optional<PartFiles> files_;  // set while blocks are read at use
  T5Config config_;
  T5Encoder encoder_;
};

// Loads `model`/tokenizer and `model`/text_encoder for families whose pipelines in diffusers clean captions,
// or lowercase and strip them.
std::unique_ptr<TextEncoder> load_t5_of_captions(const std::filesystem::path& model,
                                                 const LoadOptions& options, LoadStatistics& statistics);

}  // namespace tessera::models
