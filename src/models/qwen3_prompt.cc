#include "models/qwen3_prompt.h"

#include <string>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace tessera::models {
namespace {

text::ChatModel chat_model(Trunk trunk) {
  return trunk == Trunk::kMistral3 ? text::ChatModel::kMistral : text::ChatModel::kQwen3;
}

// The files of Mistral name the class of their tokenizer themselves. Its chat template has all tokens around
// a text.
text::BpeTokenizer read_tokenizer(const std::filesystem::path& folder, Trunk trunk) {
  if (trunk == Trunk::kQwen3) return text::BpeTokenizer(folder, "Qwen2Tokenizer");
  text::BpeTokenizerFiles files = text::read_bpe_tokenizer_files(folder, "");
  files.post_processor = Json();
  files.before.clear();
  files.after.clear();
  return text::BpeTokenizer(std::move(files));
}

std::string without_part(std::string text, std::string_view part) {
  if (part.empty()) return text;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at))
    text.erase(at, part.size());
  return text;
}

// The tokens of a turn that ends before its prompt begins: those of `empty`, the turn without a prompt.
// Otherwise nothing.
std::optional<std::vector<int64_t>> tokens_without_prompt(const text::BpeTokenizer& tokenizer,
                                                          const std::string& turn, const std::string& empty,
                                                          int64_t max_length) {
  const SuppressLog suppress_log;  // one warning for all prompts replaces one for each
  std::vector<int64_t> ids = tokenizer.encode(empty, max_length);
  const bool fills = static_cast<int64_t>(ids.size()) == max_length;
  return fills && ids == tokenizer.encode(turn, max_length) ? std::optional(std::move(ids)) : std::nullopt;
}

void require_positions(int64_t tokens, const std::optional<int64_t>& most) {
  if (!most || tokens <= *most) return;
  usage_error(
      field("prompt"),
      "has {} tokens with its template, or the negative prompt has, but the model has positions for {} "
      "('axes_lens' of its transformer); shorten it, or give {} {}",
      tokens, *most, field("max_sequence_length"), *most);
}

}  // namespace

Qwen3TextEncoder::Qwen3TextEncoder(const std::filesystem::path& tokenizer,
                                   const std::filesystem::path& encoder, const Qwen3PromptOptions& own,
                                   const LoadOptions& options, LoadStatistics& statistics)
    : own_(own),
      tokenizer_(read_tokenizer(tokenizer, own.trunk)),
      template_(text::read_chat_template(tokenizer, chat_model(own.trunk))),
      files_(std::in_place, encoder, weights::Library::kTransformers, options),
      config_(files_->config(), own.trunk),
      encoder_(options.stays ? Qwen3Encoder(files_->scope(), config_, own.states)
                             : Qwen3Encoder::read_at_use(files_->scope(), config_, own.states)) {
  if (own_.pads && !tokenizer_.pad_id()) {
    input_error((tokenizer / "tokenizer_config.json").string(),
                "'pad_token' must be a token: the model takes padded prompts");
  }
  const std::vector<std::string> unused = encoder_.unused_prefixes();
  const std::vector<std::string_view> ignored(unused.begin(), unused.end());
  if (options.stays) {
    files_->finish(statistics, /*is_all=*/true, ignored);
    files_.reset();
    return;
  }
  finish_with_layers_at_use(
      *files_, encoder, weights::Library::kTransformers, options,
      [&](const weights::Scope& scope, const JsonConfig& json) {
        Qwen3Encoder(scope, Qwen3Config(json, own_.trunk), own_.states);
      },
      ignored, statistics);
}

std::vector<Conditioning> Qwen3TextEncoder::encode(const std::vector<Prompt>& prompts, int64_t max_length) {
  const auto turn_of = [&](std::string_view prompt) {
    return template_.user_turn(prompt, own_.enable_thinking, own_.system);
  };
  const std::string empty = turn_of("");
  std::vector<Qwen3Encoder::Tokens> tokens;
  bool is_lost = false;
  for (const Prompt& prompt : prompts) {
    const std::string text = without_part(prompt.text, own_.left_out), turn = turn_of(text);
    const auto template_alone = tokens_without_prompt(tokenizer_, turn, empty, max_length);
    is_lost |= template_alone && !text.empty();
    std::vector<int64_t> ids = template_alone ? *template_alone : tokenizer_.encode(turn, max_length, text);
    Range valid = {.begin = 0, .length = static_cast<int64_t>(ids.size())};
    require_positions(valid.length, own_.most_tokens);
    const int64_t padding = max_length - valid.length;
    if (own_.pads) {
      if (tokenizer_.pads_left()) valid.begin = padding;
      ids.insert(tokenizer_.pads_left() ? ids.begin() : ids.end(), padding, *tokenizer_.pad_id());
    }
    tokens.push_back({std::move(ids), valid, own_.pads ? 0 : padding});
  }
  if (is_lost)
    log_warning(
        "[{}] is {}, of which the chat template takes all, so that nothing of the prompt is left; raise it",
        field("max_sequence_length"), max_length);
  std::vector<Conditioning> conditionings;
  for (const at::Tensor& states : encoder_(tokens)) conditionings.push_back({{kTokens, states}});
  return conditionings;
}

}  // namespace tessera::models
