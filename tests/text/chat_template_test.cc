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
  const ChatTemplate turns = read_chat_template(folder, ChatModel::kQwen3);
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
  const ChatTemplate turns = read_chat_template(golden_folder("qwen3_tokenizer"), ChatModel::kQwen3);
  const std::string begun = "<|im_start|>user\n a {cat}\n<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(turns.user_turn(" a {cat}\n", true), begun);
  EXPECT_EQ(turns.user_turn(" a {cat}\n", false), begun + "<think>\n\n</think>\n\n");
}

class ChatTemplateFolder : public TokenizerFolder {
 protected:
  std::string refusal(ChatModel model = ChatModel::kQwen3) {
    return refusal_of([&](const std::filesystem::path& folder) { read_chat_template(folder, model); });
  }
  const std::string known_ = read_file(golden_folder("qwen3_tokenizer") / "chat_template.jinja", 1000);
  const std::string of_mistral_ = read_file(golden_folder("mistral_tokenizer") / "chat_template.jinja", 1000);
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

// The message of the system and a special token in front, which a tokenizer's own post-processor would write
// again. The ids of diffusers' pipeline are compared with those of the whole text encoder (FLUX.2 dev).
TEST(ChatTemplate, WritesAMessageOfTheSystem) {
  const ChatTemplate turns = read_chat_template(golden_folder("mistral_tokenizer"), ChatModel::kMistral);
  EXPECT_EQ(turns.user_turn(" a {cat}\n", true, "be\nbrief"),
            "<s>[SYSTEM_PROMPT]be\nbrief[/SYSTEM_PROMPT][INST] a {cat}\n[/INST]");
  EXPECT_EQ(turns.user_turn("", true), "<s>[INST][/INST]");
}

// A processor does not have its tokenizer's template, and a file of its own counts after the older ones.
TEST_F(ChatTemplateFolder, ReadsTheTemplateOfAProcessorWhereTransformersDoes) {
  const Json config = {{"bos_token", "<s>"}, {"chat_template", of_mistral_}};
  write("tokenizer_config.json", config.dump());
  EXPECT_NE(refusal(ChatModel::kMistral).find("the processor has no chat template"), std::string::npos);
  std::filesystem::create_directory(folder_ / "additional_chat_templates");
  write("additional_chat_templates/default.jinja", of_mistral_);
  EXPECT_EQ(refusal(ChatModel::kMistral), "accepted");
  write("chat_template.jinja", "x");
  EXPECT_NE(refusal(ChatModel::kMistral).find("chat_template.jinja] the chat template"), std::string::npos);
  write("chat_template.json", Json{{"chat_template", of_mistral_}}.dump());
  EXPECT_EQ(refusal(ChatModel::kMistral), "accepted");
  write("processor_config.json", Json{{"chat_template", "x"}}.dump());
  EXPECT_NE(refusal(ChatModel::kMistral).find("processor_config.json] the chat template"), std::string::npos);
  write("processor_config.json", R"({"patch_size":14})");
  EXPECT_EQ(refusal(ChatModel::kMistral), "accepted");
  write("tokenizer_config.json", R"({"bos_token":null})");
  EXPECT_NE(refusal(ChatModel::kMistral).find("'bos_token' must be a token"), std::string::npos);
}

// Each model has templates of its own.
TEST_F(ChatTemplateFolder, RefusesTemplatesOfOtherModels) {
  write("tokenizer_config.json", R"({"bos_token":"<s>"})");
  write("chat_template.jinja", known_);
  EXPECT_EQ(refusal(), "accepted");
  EXPECT_NE(refusal(ChatModel::kMistral).find("which are those of Mistral Small 3.1; it cannot run"),
            std::string::npos);
  write("chat_template.jinja", of_mistral_);
  EXPECT_EQ(refusal(ChatModel::kMistral), "accepted");
  EXPECT_NE(refusal().find("which are those of Qwen3; it cannot run"), std::string::npos);
  for (const char* other :
       {"{{- bos_token }}", "{%- set today = 1 %}", "", "{{- bos_token }} {%- if", "x {{- bos_token }}"}) {
    write("chat_template.jinja", other);
    EXPECT_NE(refusal(ChatModel::kMistral).find("is not one of those that are known"), std::string::npos)
        << other;
  }
}

}  // namespace
}  // namespace tessera::text
