#include "models/stdit/open_sora.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "core/device.h"
#include "core/error.h"
#include "models/loading.h"
#include "models/stdit/layers.h"
#include "models/stdit/video_vae.h"
#include "models/t5_prompt.h"
#include "text/caption_cleaner.h"
#include "text/unicode.h"

namespace tessera::models {
namespace {

std::string caption_of(const Prompt& prompt) {
  return text::lower_and_strip(
      prompt.clean_caption ? text::clean_caption(prompt.text, text::CaptionStyle::kOpenSora) : prompt.text);
}

class OpenSoraTextEncoder final : public TextEncoder {
 public:
  OpenSoraTextEncoder(const std::filesystem::path& model, const LoadOptions& options,
                      LoadStatistics& statistics)
      : t5_(model / "tokenizer", model / "text_encoder", caption_of, options, statistics) {}

  std::vector<Conditioning> encode(const std::vector<Prompt>& prompts, int64_t max_length) override {
    std::vector<Prompt> texts;
    for (const Prompt& prompt : prompts) {
      if (!prompt.null_of) texts.push_back(prompt);
    }
    const std::vector<Conditioning> encoded = t5_.encode(texts, max_length);
    const auto length_of_prompt = [&](const Prompt& null) {
      const auto found = std::find_if(texts.begin(), texts.end(), [&](const Prompt& prompt) {
        return prompt.text == *null.null_of && prompt.clean_caption == null.clean_caption;
      });
      TESSERA_CHECK(found != texts.end(), "an unconditional branch without its prompt");
      return encoded[static_cast<size_t>(found - texts.begin())].at(kTokens).size(0);
    };
    std::vector<Conditioning> all;
    auto next = encoded.begin();
    for (const Prompt& prompt : prompts) {
      if (prompt.null_of) {
        all.push_back({{kNullTokens, at::scalar_tensor(length_of_prompt(prompt), at::kLong)}});
      } else {
        all.push_back(*next++);
      }
    }
    return all;
  }

 private:
  T5TextEncoder t5_;
};

// The CPU lacks fp16 convolutions.
weights::Scope vae_scope(PartFiles& files) {
  const weights::Scope scope = files.scope();
  return scope.dtype() == at::kHalf && is_for_cpu(scope.device()) ? scope.with_dtype(at::kFloat) : scope;
}

template <typename Half>
std::unique_ptr<Half> load_vae_half(const std::filesystem::path& model, const LoadOptions& options,
                                    LoadStatistics& statistics,
                                    const std::vector<std::string_view>& other_half) {
  PartFiles files(model / "vae", weights::Library::kTransformers, options);
  auto half = std::make_unique<Half>(vae_scope(files), read_video_vae_config(files.config()));
  files.finish(statistics, /*is_all=*/true, other_half);
  return half;
}

}  // namespace

std::unique_ptr<TextEncoder> load_open_sora_text_encoder(const std::filesystem::path& model,
                                                         const LoadOptions& options,
                                                         LoadStatistics& statistics) {
  return std::make_unique<OpenSoraTextEncoder>(model, options, statistics);
}

LatentScale read_video_vae_scale(const std::filesystem::path& model, int64_t channels) {
  const JsonConfig json = JsonConfig::read(model / "vae" / "config.json");
  const VideoVaeConfig config = read_video_vae_config(json);
  if (config.temporal.embed_dim != channels)
    json.refuse("vae_temporal", fmt::format("its latents have {} channels, but the transformer takes {}",
                                            config.temporal.embed_dim, channels));
  return {.pixels = config.spatial.scale_factor(),
          .channels = channels,
          .clip = config.clip,
          .frames = config.temporal.time_factor()};
}

std::unique_ptr<Decoder> load_video_vae_decoder(const std::filesystem::path& model,
                                                const LoadOptions& options, LoadStatistics& statistics) {
  return load_vae_half<VideoVaeDecoder>(model, options, statistics,
                                        {"spatial_vae.module.encoder.", "spatial_vae.module.quant_conv.",
                                         "temporal_vae.encoder.", "temporal_vae.quant_conv."});
}

std::unique_ptr<Encoder> load_video_vae_encoder(const std::filesystem::path& model,
                                                const LoadOptions& options, LoadStatistics& statistics) {
  return load_vae_half<VideoVaeEncoder>(model, options, statistics,
                                        {"spatial_vae.module.decoder.", "spatial_vae.module.post_quant_conv.",
                                         "temporal_vae.decoder.", "temporal_vae.post_quant_conv."});
}

}  // namespace tessera::models
