#include "text/chat_template.h"

#include <gtest/gtest.h>

#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "tests/support/golden.h"
#include "tests/support/tokenizer_folder.h"
#include "text/bpe_tokenizer.h"

namespace tessera::text {
namespace {

using TurnIds = std::vector<int64_t>;

// Emoji, marks, digits, lines, spaces, Chinese, special tokens inside a prompt, and prompts beyond 512
// tokens, which lose the end of the template.
TEST(ChatTemplate, GivesTheIdsOfDiffusersPipelines) {
  const std::filesystem::path folder = golden_folder("qwen3_tokenizer");
  const BpeTokenizer tokenizer(folder, "Qwen2TokenizerFast");
  const ChatTemplate turns = read_chat_template(folder);
  const Json lines = read_json(folder / "lines.json");
  EXPECT_GE(lines.size(), 50U);
  std::vector<std::string> warnings;
  const ScopedLogSink sink([&](LogLevel, const std::string& message) { warnings.push_back(message); });
  size_t cut = 0;
  for (const Json& line : lines) {
    const auto text = line["text"].get<std::string>();
    for (const auto& [key, enable_thinking] : {std::pair("thinking", true), {"plain", false}}) {
      const TurnIds expected = line[key].get<TurnIds>();
      cut += expected.size() == 512 ? 1 : 0;
      EXPECT_EQ(tokenizer.encode(turns.user_turn(text, enable_thinking), 512), expected)
          << key << ": " << text;
    }
  }
  EXPECT_GE(cut, 4U);
  EXPECT_EQ(warnings.size(), cut);
}

TEST(ChatTemplate, WritesATurnWithTheBeginningOfTheAnswer) {
  const ChatTemplate turns = read_chat_template(golden_folder("qwen3_tokenizer"));
  const std::string begun = "<|im_start|>user\n a {cat}\n<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(turns.user_turn(" a {cat}\n", true), begun);
  EXPECT_EQ(turns.user_turn(" a {cat}\n", false), begun + "<think>\n\n</think>\n\n");
}

class ChatTemplateFolder : public TokenizerFolder {
 protected:
  std::string refusal() {
    return refusal_of([](const std::filesystem::path& folder) { read_chat_template(folder); });
  }
  const std::string known_ = read_file(golden_folder("qwen3_tokenizer") / "chat_template.jinja", 1000);
};

TEST_F(ChatTemplateFolder, ReadsTheTemplateWhereTransformersDoes) {
  write("tokenizer_config.json", Json{{"chat_template", known_}}.dump());
  EXPECT_EQ(refusal(), "accepted");
  const Json named = {{{"name", "tool_use"}, {"template", "x"}}, {{"name", "default"}, {"template", known_}}};
  write("tokenizer_config.json", Json{{"chat_template", named}}.dump());
  EXPECT_EQ(refusal(), "accepted");
  // A file counts beside the key.
  write("chat_template.jinja", known_ + " ");
  EXPECT_NE(
      refusal().find("chat_template.jinja] the chat template (of 303 bytes, with the hash 1516340d7692e592)"),
      std::string::npos)
      << refusal();
  write("chat_template.jinja", known_ + "\r\n");
  write("tokenizer_config.json", R"({"chat_template":"x"})");
  EXPECT_EQ(refusal(), "accepted");
  std::filesystem::create_directory(folder_ / "additional_chat_templates");
  write("additional_chat_templates/default.jinja", "x");
  EXPECT_NE(refusal().find("default.jinja] the chat template"), std::string::npos) << refusal();
}

TEST_F(ChatTemplateFolder, RefusesTemplatesThatItDoesNotKnow) {
  EXPECT_NE(refusal().find("has no chat template"), std::string::npos) << refusal();
  write("tokenizer_config.json", R"({"chat_template":null})");
  EXPECT_NE(refusal().find("has no chat template"), std::string::npos) << refusal();
  for (const std::string& other : {known_ + "x", known_.substr(1), std::string(4168, 'x')}) {
    write("tokenizer_config.json", Json{{"chat_template", other}}.dump());
    EXPECT_NE(refusal().find("tokenizer_config.json] the chat template"), std::string::npos) << refusal();
  }
  for (const char* list : {R"([{"name":"rag","template":"x"}])", "[5]", "[]"}) {
    write("tokenizer_config.json", fmt::format(R"({{"chat_template":{}}})", list));
    EXPECT_NE(refusal().find("'chat_template' must be a string, or a list in which one is named \"default\""),
              std::string::npos)
        << refusal();
  }
}

}  // namespace
}  // namespace tessera::text
