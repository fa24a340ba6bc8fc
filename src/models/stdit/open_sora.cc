#include "models/stdit/open_sora.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <utility>

#include "core/device.h"
#include "core/error.h"
#include "models/loading.h"
#include "models/stdit/layers.h"
#include "models/stdit/video_vae.h"
#include "models/t5.h"
#include "text/caption_cleaner.h"

namespace tessera::models {
namespace {

class OpenSoraTextEncoder final : public TextEncoder {
 public:
  explicit OpenSoraTextEncoder(std::unique_ptr<TextEncoder> t5) : t5_(std::move(t5)) {}

  std::vector<Conditioning> encode(const std::vector<Prompt>& prompts, int64_t max_length) override {
    std::vector<Prompt> texts, cleaned;
    for (const Prompt& prompt : prompts) {
      if (prompt.null_of) continue;
      texts.push_back(prompt);
      cleaned.push_back(prompt);
      if (!std::exchange(cleaned.back().clean_caption, false)) continue;
      cleaned.back().text = text::clean_caption(prompt.text, text::CaptionStyle::kOpenSora);
    }
    const std::vector<Conditioning> encoded = t5_->encode(cleaned, max_length);
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
  int64_t width() const override { return t5_->width(); }

 private:
  std::unique_ptr<TextEncoder> t5_;
};

// Convolutions of the CPU have no fp16.
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
  return std::make_unique<OpenSoraTextEncoder>(load_t5_text_encoder(model, options, statistics));
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
