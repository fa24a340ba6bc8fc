// Settings in a prompt: Open-Sora's prompts may end in a JSON object with what one of them begins from.
#pragma once

#include <optional>
#include <string>

namespace tessera::engine {

struct PromptSettings {
  std::string text;  // the prompt without them
  // Instead of the request's, for this prompt.
  std::optional<std::string> reference_path = {}, mask_strategy = {};
};

// Reads `TEXT {"reference_path": "boat.png", "mask_strategy": "0"}`. Braces that do not end the prompt, or
// are no JSON, are a part of the text. Throws Error(kUsage) for an object with other keys or values, and for
// braces that name a setting but are no object at the end of the prompt.
PromptSettings split_settings(const std::string& prompt);

}  // namespace tessera::engine
