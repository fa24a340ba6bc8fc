// Settings in a prompt: Open-Sora's prompts may end in a JSON object with what one of them begins from.
#pragma once

#include <optional>
#include <string>
#include <vector>

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

// Paths of references, separated by semicolons, without the spaces around them. An empty text has none.
std::vector<std::string> split_paths(const std::string& paths);

// The same without the folders of references, which say something of the machine and not of the video. Only a
// prompt that names a folder changes.
std::string paths_without_folders(const std::string& paths);
std::string prompt_without_folders(const std::string& prompt);

}  // namespace tessera::engine
