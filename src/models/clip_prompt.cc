#include "models/clip_prompt.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "core/error.h"
#include "core/text.h"
#include "models/loading.h"

namespace tessera::models {
namespace {

CLIPTextEncoder load_clip(const std::filesystem::path& folder, bool has_projection,
                          const LoadOptions& options, LoadStatistics& statistics) {
  PartFiles files(folder, weights::Library::kTransformers, options);
  CLIPTextConfig config(clip_text_config(files.config()));
  config.has_projection = has_projection;
  CLIPTextEncoder encoder(files.scope(), config);
  // Older files also store the indices of the positions.
  const at::Tensor positions = at::arange(config.max_position_embeddings).unsqueeze(0);
  for (const char* key : {"text_model.embeddings.position_ids", "embeddings.position_ids"})
    files.compare(key, positions);
  files.finish(statistics);
  return encoder;
}

}  // namespace

ClipTextEncoder::ClipTextEncoder(const std::filesystem::path& tokenizer, const std::filesystem::path& encoder,
                                 const ClipPromptOptions& own, const LoadOptions& options,
                                 LoadStatistics& statistics)
    : own_(own),
      tokenizer_(tokenizer, "CLIPTokenizer"),
      encoder_(load_clip(encoder, own.has_projection, options, statistics)),
      length_(std::min(tokenizer_.model_max_length(), encoder_.config().max_position_embeddings)) {
  constexpr int64_t kMarks = 2;  // begin and end tokens
  if (length_ < kMarks)
    input_error(tokenizer.string(), "no prompt has room in {}", counted(length_, "token"));
}

std::vector<Conditioning> ClipTextEncoder::encode(const std::vector<Prompt>& prompts,
                                                  int64_t /*max_length*/) {
  const int64_t layers = encoder_.config().num_hidden_layers, most = layers - own_.skip;
  std::vector<Conditioning> conditionings;
  conditionings.reserve(prompts.size());
  for (const Prompt& prompt : prompts) {
    Conditioning& made = conditionings.emplace_back();
    if (prompt.is_absent && own_.zeros_when_absent) {
      made = zeros();
      continue;
    }
    if (prompt.clip_skip > most)
      usage_error(field("clip_skip"), "must be at most {}, got {}: the text encoder has {}", most,
                  prompt.clip_skip, counted(layers, "layer"));
    const auto [tokens, pooled] =
        encoder_(tokenizer_.encode_padded(tokenizer_.with_all_vectors(prompt.text), length_),
                 own_.skip + prompt.clip_skip, own_.normed);
    made[kTokens] = tokens;
    if (pooled.defined()) made[kPooled] = pooled;
  }
  return conditionings;
}

Conditioning ClipTextEncoder::zeros() const {
  const CLIPTextConfig& config = encoder_.config();
  Conditioning made = {{kTokens, at::zeros({length_, config.hidden_size}, encoder_.options())}};
  if (config.has_projection) made[kPooled] = at::zeros({config.projection_dim}, encoder_.options());
  return made;
}

JsonConfig clip_text_config(const JsonConfig& file) {
  return file.has("text_config") ? file.object("text_config") : file;
}

}  // namespace tessera::models
