// The text around a prompt that a language model takes as a turn of a conversation. Tokenizers contain it as
// a program, `chat_template`, which is not executed: known templates are recognised.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace tessera::text {

// The models whose templates are known.
enum class ChatModel {
  kQwen3,
  kMistral,  // with a tekken vocabulary, as in Mistral Small 3.1; the files are those of a processor
};

// What a template adds to a conversation.
struct ChatTemplate {
  std::string begin = {};  // of every conversation
  std::string_view before_system = {}, after_system = {};
  std::string_view before, after;  // around a turn of the user; `after` includes the beginning of the answer
  // Follows if the model is asked not to think: transformers' enable_thinking is false.
  std::string_view without_thinking = {};

  // `system` is a message that comes first; empty if there is none.
  std::string user_turn(std::string_view prompt, bool enable_thinking, std::string_view system = {}) const;
};

// Reads the template of a tokenizer's or processor's folder where transformers does: chat_template.jinja, or
// keys of other files. Throws Error(kInput), naming the file, if there is no template or it is unknown.
ChatTemplate read_chat_template(const std::filesystem::path& folder, ChatModel model);

}  // namespace tessera::text
