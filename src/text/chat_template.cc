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

constexpr ChatTemplate kQwen3Template = {.before = "<|im_start|>user\n",
                                         .after = "<|im_end|>\n<|im_start|>assistant\n",
                                         .without_thinking = "<think>\n\n</think>\n\n"};

// This is what Qwen3's template gives for turns without tools, for models of one's own.
constexpr std::string_view kPlainTurns =
    "{% for message in messages %}"
    R"({{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }})"
    "{% endfor %}{% if add_generation_prompt %}"
    R"({{ '<|im_start|>assistant\n' }})"
    "{% if enable_thinking is defined and enable_thinking is false %}"
    R"({{ '<think>\n\n</think>\n\n' }})"
    "{% endif %}{% endif %}";

// Holds lengths and hashes of the templates of published models: those of Qwen3 of April 2025, and of May
// 2025 and later, which the models of FLUX.2 klein have.
struct KnownTemplate {
  size_t bytes;
  std::string_view hash;
};
constexpr auto kPublished =
    std::to_array<KnownTemplate>({{4116, "2bfdb7aa9754484e"}, {4168, "959a4551391a6549"}});

std::string hash_of(std::string_view text) {
  Hash hash;
  hash.add(text);
  return hash.text();
}

struct TemplateFile {
  std::string text, where;
};

TemplateFile find_template(const fs::path& folder) {
  for (const fs::path& path :
       {folder / "additional_chat_templates" / "default.jinja", folder / "chat_template.jinja"}) {
    if (type_at(path) == fs::file_type::regular) return {read_file(path, kMaxTemplateBytes), path.string()};
  }
  const JsonConfig config = read_json_if_there(folder / "tokenizer_config.json");
  const Json* value = config.value("chat_template");
  if (value == nullptr || value->is_null()) {
    input_error(folder.string(),
                "the tokenizer has no chat template: neither chat_template.jinja nor 'chat_template' in "
                "tokenizer_config.json");
  }
  if (value->is_array()) {  // several by name, of which "default" counts
    for (const Json& each : *value) {
      if (!each.is_object()) continue;
      const JsonConfig named(each, config.where());
      if (named.string("name") == "default") return {named.string("template"), config.where()};
    }
    config.fail("chat_template", "a string, or a list in which one is named \"default\"");
  }
  return {config.string("chat_template"), config.where()};
}

// Reads the text as Jinja does: line ends are "\n", and one at the end of the text does not count.
std::string as_jinja_reads(std::string_view text) {
  std::string lines;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r') lines += text[i];
    if (text[i] == '\r' && text.substr(i + 1, 1) != "\n") lines += '\n';
  }
  if (lines.ends_with('\n')) lines.pop_back();
  return lines;
}

}  // namespace

std::string ChatTemplate::user_turn(std::string_view prompt, bool enable_thinking) const {
  return fmt::format("{}{}{}{}", before, prompt, after, enable_thinking ? "" : without_thinking);
}

ChatTemplate read_chat_template(const fs::path& folder) {
  const TemplateFile file = find_template(folder);
  const std::string text = as_jinja_reads(file.text), hash = hash_of(text);
  const bool is_known =
      text == kPlainTurns || std::any_of(kPublished.begin(), kPublished.end(), [&](const auto& known) {
        return known.bytes == text.size() && known.hash == hash;
      });
  if (!is_known) {
    input_error(file.where,
                "the chat template (of {} bytes, with the hash {}) is not one of those that are known, which "
                "are those of Qwen3; it cannot run",
                text.size(), hash);
  }
  return kQwen3Template;
}

}  // namespace tessera::text
