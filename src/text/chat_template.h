// The text around a prompt that a language model takes as a turn of a conversation. Tokenizers have it as a
// program, `chat_template`, which is not run: those that are known are recognised.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace tessera::text {

// What a template makes of one turn of the user, with the beginning of the answer behind it.
struct ChatTemplate {
  std::string_view before, after;
  // This follows if the model is asked not to think: transformers' enable_thinking is false.
  std::string_view without_thinking;

  std::string user_turn(std::string_view prompt, bool enable_thinking) const;
};

// Reads the template of a tokenizer's folder where transformers does: chat_template.jinja, or the key of
// tokenizer_config.json. Throws Error(kInput) that names the file if there is none or it is not known.
ChatTemplate read_chat_template(const std::filesystem::path& folder);

}  // namespace tessera::text
