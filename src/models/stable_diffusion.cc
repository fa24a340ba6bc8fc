#include "models/stable_diffusion.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <optional>

#include "core/counted.h"
#include "core/error.h"
#include "core/field_name.h"
#include "models/clip.h"
#include "models/loading.h"
#include "text/bpe_tokenizer.h"
#include "text/unicode.h"

namespace tessera::models {
namespace {

// The classes that model_index.json names, one of which has a projection at its end.
bool has_projection(const JsonConfig& index, const std::string& part) {
  return class_of(index, part).name == "CLIPTextModelWithProjection";
}

// The options of the text model, which the file of a whole CLIP model has under a key of its own.
JsonConfig text_config(const JsonConfig& file) {
  return file.has("text_config") ? file.object("text_config") : file;
}

CLIPTextEncoder load_clip(const std::filesystem::path& folder, bool has_projection,
                          const LoadOptions& options, LoadStatistics& statistics) {
  PartFiles files(folder, weights::Library::kTransformers, options);
  CLIPTextConfig config(text_config(files.config()));
  config.has_projection = has_projection;
  CLIPTextEncoder encoder(files.scope(), config);
  // Older files also store the indices of the positions.
  const at::Tensor positions = at::arange(config.max_position_embeddings).unsqueeze(0);
  for (const char* key : {"text_model.embeddings.position_ids", "embeddings.position_ids"})
    files.compare(key, positions);
  files.finish(statistics);
  return encoder;
}

// Pairs a tokenizer with its encoder.
class Clip {
 public:
  Clip(const std::filesystem::path& model, const std::string& suffix, bool has_projection,
       const LoadOptions& options, LoadStatistics& statistics)
      : tokenizer_(model / ("tokenizer" + suffix), "CLIPTokenizer"),
        encoder_(load_clip(model / ("text_encoder" + suffix), has_projection, options, statistics)),
        length(std::min(tokenizer_.model_max_length(), encoder_.config().max_position_embeddings)) {
    constexpr int64_t kMarks = 2;  // begin and end tokens
    if (length < kMarks) {
      input_error((model / ("tokenizer" + suffix)).string(), "no prompt has room in {}",
                  counted(length, "token"));
    }
  }

  // `at_least` layers at the end are always skipped.
  CLIPTextEncoder::Output encode(const std::string& text, int64_t clip_skip, int64_t at_least,
                                 bool normed) const {
    const CLIPTextConfig& config = encoder_.config();
    const int64_t most = config.num_hidden_layers - at_least;
    if (clip_skip > most)
      usage_error(field("clip_skip"), "must be at most {}, got {}: the text encoder has {}", most, clip_skip,
                  counted(config.num_hidden_layers, "layer"));
    return encoder_(tokenizer_.encode_padded(tokenizer_.with_all_vectors(text), length), at_least + clip_skip,
                    normed);
  }
  const CLIPTextConfig& config() const { return encoder_.config(); }

 private:
  text::BpeTokenizer tokenizer_;
  CLIPTextEncoder encoder_;

 public:
  const int64_t length;  // in tokens, the same for every prompt
};

class StableDiffusionTextEncoder final : public TextEncoder {
 public:
  StableDiffusionTextEncoder(const std::filesystem::path& model, const LoadOptions& options,
                             LoadStatistics& statistics)
      : clip_(model, "", /*has_projection=*/false, options, statistics) {
    // The pipeline of XL takes no notice of it.
    const JsonConfig config = text_config(JsonConfig::read(model / "text_encoder" / "config.json"));
    if (config.boolean("use_attention_mask", false))
      config.refuse("use_attention_mask",
                    "text encoders that pass over the padding of a prompt cannot run yet");
  }

  std::vector<Conditioning> encode(const std::vector<Prompt>& prompts, int64_t /*max_length*/) override {
    std::vector<Conditioning> conditionings;
    conditionings.reserve(prompts.size());
    for (const Prompt& prompt : prompts)
      conditionings.push_back(
          {{kTokens, clip_.encode(prompt.text, prompt.clip_skip, 0, /*normed=*/true).hidden}});
    return conditionings;
  }
  int64_t width() const override { return clip_.config().hidden_size; }

 private:
  Clip clip_;
};

class StableDiffusionXLTextEncoder final : public TextEncoder {
 public:
  StableDiffusionXLTextEncoder(const std::filesystem::path& model, const LoadOptions& options,
                               LoadStatistics& statistics)
      : StableDiffusionXLTextEncoder(JsonConfig::read(model / "model_index.json"), model, options,
                                     statistics) {}
  StableDiffusionXLTextEncoder(const JsonConfig& index, const std::filesystem::path& model,
                               const LoadOptions& options, LoadStatistics& statistics)
      : zeros_when_absent_(index.boolean("force_zeros_for_empty_prompt", true)),
        second_(model, "_2", has_projection(index, "text_encoder_2"), options, statistics) {
    if (is_absent(index, "tokenizer") != is_absent(index, "text_encoder"))
      index.fail("text_encoder", "there if 'tokenizer' is, and null if that is null");
    if (!is_absent(index, "text_encoder"))
      first_.emplace(model, "", has_projection(index, "text_encoder"), options, statistics);
    if (!pooling().has_projection)
      index.fail("text_encoder_2", "a CLIPTextModelWithProjection, which pools the prompt");
    if (first_ && first_->length != second_.length) {
      input_error(model.string(), "the two text encoders take prompts of {} and {} tokens", first_->length,
                  second_.length);
    }
  }

  std::vector<Conditioning> encode(const std::vector<Prompt>& prompts, int64_t /*max_length*/) override {
    std::vector<Conditioning> conditionings;
    for (const Prompt& prompt : prompts) {
      const bool is_zero = prompt.is_absent && zeros_when_absent_;
      const auto [tokens, pooled] = encode(prompt);
      conditionings.push_back({{kTokens, is_zero ? at::zeros_like(tokens) : tokens},
                               {kPooled, is_zero ? at::zeros_like(pooled) : pooled}});
    }
    return conditionings;
  }
  int64_t width() const override {
    return (first_ ? first_->config().hidden_size : 0) + second_.config().hidden_size;
  }
  int64_t pooled_width() const override { return pooling().projection_dim; }

 private:
  CLIPTextEncoder::Output encode(const Prompt& prompt) const {
    const auto by = [&](const Clip& clip, const std::string& text) {
      return clip.encode(text, prompt.clip_skip, 1, /*normed=*/false);
    };
    if (!first_) return by(second_, prompt.text);
    const CLIPTextEncoder::Output one = by(*first_, prompt.text);
    const CLIPTextEncoder::Output two = by(second_, prompt.second.value_or(prompt.text));
    return {at::concat({one.hidden, two.hidden}, 1), one.pooled.defined() ? one.pooled : two.pooled};
  }
  // The first encoder that pools the prompt is the one whose vector counts.
  const CLIPTextConfig& pooling() const {
    return first_ && first_->config().has_projection ? first_->config() : second_.config();
  }

  bool zeros_when_absent_;
  std::optional<Clip> first_;
  Clip second_;
};

}  // namespace

std::unique_ptr<TextEncoder> load_stable_diffusion_text_encoder(const std::filesystem::path& model,
                                                                const LoadOptions& options,
                                                                LoadStatistics& statistics) {
  return std::make_unique<StableDiffusionTextEncoder>(model, options, statistics);
}

std::unique_ptr<TextEncoder> load_stable_diffusion_xl_text_encoder(const std::filesystem::path& model,
                                                                   const LoadOptions& options,
                                                                   LoadStatistics& statistics) {
  return std::make_unique<StableDiffusionXLTextEncoder>(model, options, statistics);
}

}  // namespace tessera::models
