// Qwen3, or Mistral 3, and its tokenizer as the text encoder of a family. The network is in models/qwen3.h.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "models/family.h"
#include "models/loading.h"
#include "models/qwen3.h"
#include "text/bpe_tokenizer.h"
#include "text/chat_template.h"

namespace tessera::models {

// What a family needs from the model. A prompt is a turn of the user in the tokenizer's chat template.
struct Qwen3PromptOptions {
  Trunk trunk = Trunk::kQwen3;
  std::vector<int64_t> states;     // see Qwen3Encoder
  std::string_view system = {};    // the message before the prompt, if any
  std::string_view left_out = {};  // removed from prompts, wherever it occurs
  bool enable_thinking = true;     // for the chat template
  // Whether the output has as many tokens as encode() may keep, with padding on the side that the tokenizer's
  // file names; padding takes part in attention unless the denoiser masks it. Otherwise it has only the
  // tokens of the prompt.
  bool pads = false;
  // Of a prompt with its template, if the denoiser has only this many positions.
  std::optional<int64_t> most_tokens = {};
};

// Gives kTokens, the states side by side.
class Qwen3TextEncoder final : public TextEncoder {
 public:
  // Reads two folders. Weights are read at each use unless options.stays. Throws Error(kInput) for an unknown
  // chat template.
  Qwen3TextEncoder(const std::filesystem::path& tokenizer, const std::filesystem::path& encoder,
                   const Qwen3PromptOptions& own, const LoadOptions& options, LoadStatistics& statistics);

  // A prompt that is too long loses its end, and with it the end of the template. Throws Error(kUsage) if it
  // still has more tokens than the denoiser has positions.
  std::vector<Conditioning> encode(const std::vector<Prompt>& prompts, int64_t max_length) override;

 private:
  Qwen3PromptOptions own_;
  text::BpeTokenizer tokenizer_;
  text::ChatTemplate template_;
  std::optional<PartFiles> files_;  // set while blocks are read at use
  Qwen3Config config_;
  Qwen3Encoder encoder_;
};

}  // namespace tessera::models
