#include "text/chat_template.h"

#include <algorithm>
#include <array>
#include <optional>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/text.h"
#include "text/tokenizer_config.h"

namespace tessera::text {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxTemplateBytes = uint64_t{1} << 20;

// What Qwen3's template produces for turns without tools, for custom models.
constexpr std::string_view kPlainTurns =
    "{% for message in messages %}"
    R"({{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }})"
    "{% endfor %}{% if add_generation_prompt %}"
    R"({{ '<|im_start|>assistant\n' }})"
    "{% if enable_thinking is defined and enable_thinking is false %}"
    R"({{ '<think>\n\n</think>\n\n' }})"
    "{% endif %}{% endif %}";

// The same for Mistral, whose messages are lists of texts.
constexpr std::string_view kPlainLists =
    "{{ bos_token }}{% for message in messages %}"
    "{% set name = 'SYSTEM_PROMPT' if message['role'] == 'system' else 'INST' %}"
    "{{ '[' + name + ']' }}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}"
    "{{ '[/' + name + ']' }}{% endfor %}";

struct KnownTemplate {
  size_t bytes;
  std::string_view hash;
};

// Lengths and hashes of the templates of published models: those of Qwen3 of April 2025, and of May 2025 and
// later; the latter are in the models of FLUX.2 klein.
constexpr auto kQwen3Templates =
    std::to_array<KnownTemplate>({{4116, "2bfdb7aa9754484e"}, {4168, "959a4551391a6549"}});

// The same for what statements() returns for Mistral Small 3.1: in transformers' version, which tests whether
// the first message is a text, and in the intended version, which tests its content.
constexpr auto kMistralStatements =
    std::to_array<KnownTemplate>({{1425, "f8b32831c8591fa2"}, {1436, "171280d976cedbb3"}});

std::string hash_of(std::string_view text) {
  Hash hash;
  hash.add(text);
  return hash.text();
}

template <size_t N>
bool is_among(const std::array<KnownTemplate, N>& all, std::string_view text) {
  return std::any_of(all.begin(), all.end(), [&, hash = hash_of(text)](const KnownTemplate& known) {
    return known.bytes == text.size() && known.hash == hash;
  });
}

struct TemplateFile {
  std::string text, where;
};

std::optional<TemplateFile> read_template(const fs::path& path) {
  if (type_at(path) != fs::file_type::regular) return std::nullopt;
  return TemplateFile{read_file(path, kMaxTemplateBytes), path.string()};
}

TemplateFile find_template(const fs::path& folder) {
  for (const fs::path& path :
       {folder / "additional_chat_templates" / "default.jinja", folder / "chat_template.jinja"}) {
    if (auto file = read_template(path)) return *std::move(file);
  }
  const JsonConfig config = read_json_if_there(folder / "tokenizer_config.json");
  const Json* value = config.value("chat_template");
  if (value == nullptr || value->is_null()) {
    input_error(folder.string(),
                "the tokenizer has no chat template: neither chat_template.jinja nor 'chat_template' in "
                "tokenizer_config.json");
  }
  if (value->is_array()) {  // several by name; "default" counts
    for (const Json& each : *value) {
      if (!each.is_object()) continue;
      const JsonConfig named(each, config.where());
      if (named.string("name") == "default") return {named.string("template"), config.where()};
    }
    config.fail("chat_template", "a string, or a list in which one is named \"default\"");
  }
  return {config.string("chat_template"), config.where()};
}

// A processor does not use its tokenizer's template, and reads files in another order.
TemplateFile find_processor_template(const fs::path& folder) {
  for (const char* name : {"processor_config.json", "chat_template.json"}) {
    const JsonConfig config = read_json_if_there(folder / name);
    if (config.has("chat_template")) return {config.string("chat_template"), config.where()};
  }
  for (const fs::path& path :
       {folder / "chat_template.jinja", folder / "additional_chat_templates" / "default.jinja"}) {
    if (auto file = read_template(path)) return *std::move(file);
  }
  input_error(folder.string(),
              "the processor has no chat template: neither chat_template.jinja nor chat_template.json");
}

// Reads the text like Jinja: line ends become "\n", and one at the end of the text is dropped.
std::string as_jinja_reads(std::string_view text) {
  std::string lines;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r') lines += text[i];
    if (text[i] == '\r' && text.substr(i + 1, 1) != "\n") lines += '\n';
  }
  if (lines.ends_with('\n')) lines.pop_back();
  return lines;
}

// Returns the statements of a template, one per line. Copies of a template differ in the space between
// statements, which every statement strips, and in what they insert if a conversation has no system message;
// both are left out. Empty for a template that is written in another way.
std::string statements(std::string_view text) {
  std::string lines;
  while (!text.empty() && text != "\n") {
    const size_t begin = std::min(text.find_first_not_of(" \t\n"), text.size());
    const bool is_output = text.substr(begin).starts_with("{{-");
    if (!is_output && !text.substr(begin).starts_with("{%-")) return {};
    const size_t end = text.find(is_output ? "}}" : "%}", begin);
    if (end == std::string_view::npos) return {};
    const std::string_view statement = text.substr(begin, end + 2 - begin);
    text.remove_prefix(end + 2);
    if (statement.starts_with("{%- set today = ") ||
        statement.starts_with("{%- set default_system_message = "))
      continue;
    lines += statement;
    lines += '\n';
  }
  return lines;
}

ChatTemplate qwen3_template() {
  return {.before = "<|im_start|>user\n",
          .after = "<|im_end|>\n<|im_start|>assistant\n",
          .without_thinking = "<think>\n\n</think>\n\n"};
}

ChatTemplate mistral_template(const fs::path& folder) {
  const TokenizerConfig config(folder);
  const std::optional<AddedToken> begin = config.token("bos_token");
  if (!begin) config.values().fail("bos_token", "a token, with which the chat template begins");
  return {.begin = begin->text,
          .before_system = "[SYSTEM_PROMPT]",
          .after_system = "[/SYSTEM_PROMPT]",
          .before = "[INST]",
          .after = "[/INST]"};
}

}  // namespace

std::string ChatTemplate::user_turn(std::string_view prompt, bool enable_thinking,
                                    std::string_view system) const {
  const bool has_system = !system.empty();
  return fmt::format("{}{}{}{}{}{}{}{}", begin, has_system ? before_system : "", system,
                     has_system ? after_system : "", before, prompt, after,
                     enable_thinking ? "" : without_thinking);
}

ChatTemplate read_chat_template(const fs::path& folder, ChatModel model) {
  const bool is_mistral = model == ChatModel::kMistral;
  const TemplateFile file = is_mistral ? find_processor_template(folder) : find_template(folder);
  const std::string text = as_jinja_reads(file.text);
  const bool is_known = is_mistral ? text == kPlainLists || is_among(kMistralStatements, statements(text))
                                   : text == kPlainTurns || is_among(kQwen3Templates, text);
  if (!is_known) {
    input_error(file.where,
                "the chat template (of {} bytes, with the hash {}) is not one of those that are known, which "
                "are those of {}; it cannot run",
                text.size(), hash_of(text), is_mistral ? "Mistral Small 3.1" : "Qwen3");
  }
  return is_mistral ? mistral_template(folder) : qwen3_template();
}

}  // namespace tessera::text
