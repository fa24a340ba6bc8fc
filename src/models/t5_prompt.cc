#include "models/t5_prompt.h"

#include "text/caption_cleaner.h"
#include "text/unicode.h"

namespace tessera::models {

T5TextEncoder::T5TextEncoder(const std::filesystem::path& tokenizer, const std::filesystem::path& encoder,
                             Caption caption, const LoadOptions& options, LoadStatistics& statistics)
    : tokenizer_(tokenizer),
      caption_(caption),
      files_(std::in_place, encoder, weights::Library::kTransformers, options),
      config_(files_->config()),
      encoder_(options.stays ? T5Encoder(files_->scope(), config_)
                             : T5Encoder::read_at_use(files_->scope(), config_)) {
  const std::vector<std::string_view> of_whole_models = {"decoder.", "lm_head."};
  if (options.stays) {
    files_->finish(statistics, /*is_all=*/true, of_whole_models);
    files_.reset();
    return;
  }
  finish_with_layers_at_use(
      *files_, encoder, weights::Library::kTransformers, options,
      [](const weights::Scope& scope, const JsonConfig& json) { T5Encoder(scope, T5Config(json)); },
      of_whole_models, statistics);
}

std::vector<Conditioning> T5TextEncoder::encode(const std::vector<Prompt>& prompts, int64_t max_length) {
  std::vector<std::vector<int64_t>> ids;
  ids.reserve(prompts.size());
  for (const Prompt& prompt : prompts) ids.push_back(tokenizer_.encode(caption_(prompt), max_length));
  std::vector<Conditioning> conditionings;
  for (const at::Tensor& tokens : encoder_(ids)) conditionings.push_back({{kTokens, tokens}});
  return conditionings;
}

std::unique_ptr<TextEncoder> load_t5_of_captions(const std::filesystem::path& model,
                                                 const LoadOptions& options, LoadStatistics& statistics) {
  const auto caption = [](const Prompt& prompt) {
    return prompt.clean_caption ? text::clean_caption(prompt.text) : text::lower_and_strip(prompt.text);
  };
  return std::make_unique<T5TextEncoder>(model / "tokenizer", model / "text_encoder", caption, options,
                                         statistics);
}

}  // namespace tessera::models
