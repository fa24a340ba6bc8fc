#include "models/stable_diffusion.h"

#include <ATen/Functions.h>

#include "core/error.h"
#include "models/clip_prompt.h"

namespace tessera::models {
namespace {

// Returns whether model_index.json names the class of text encoders that end with a projection.
bool has_projection(const JsonConfig& index, const std::string& part) {
  return !is_absent(index, part) && class_of(index, part).name == "CLIPTextModelWithProjection";
}

// `suffix` is that of the parts: "" or "_2".
std::unique_ptr<TextEncoder> load_of_xl(const std::filesystem::path& model, const std::string& suffix,
                                        const LoadOptions& options, LoadStatistics& statistics) {
  const JsonConfig index = JsonConfig::read(model / "model_index.json");
  if (is_absent(index, "tokenizer") != is_absent(index, "text_encoder"))
    index.fail("text_encoder", "there if 'tokenizer' is, and null if that is null");
  if (!has_projection(index, "text_encoder") && !has_projection(index, "text_encoder_2"))
    index.fail("text_encoder_2", "a CLIPTextModelWithProjection, which pools the prompt");
  const ClipPromptOptions own{.has_projection = has_projection(index, "text_encoder" + suffix),
                              .skip = 1,
                              .normed = false,
                              .zeros_when_absent = index.boolean("force_zeros_for_empty_prompt", true)};
  return std::make_unique<ClipTextEncoder>(model / ("tokenizer" + suffix), model / ("text_encoder" + suffix),
                                           own, options, statistics);
}

}  // namespace

std::unique_ptr<TextEncoder> load_stable_diffusion_text_encoder(const std::filesystem::path& model,
                                                                const LoadOptions& options,
                                                                LoadStatistics& statistics) {
  auto encoder = std::make_unique<ClipTextEncoder>(model / "tokenizer", model / "text_encoder",
                                                   ClipPromptOptions(), options, statistics);
  // The pipeline of XL ignores it.
  const JsonConfig config = clip_text_config(JsonConfig::read(model / "text_encoder" / "config.json"));
  if (config.boolean("use_attention_mask", false))
    config.refuse("use_attention_mask",
                  "text encoders that pass over the padding of a prompt cannot run yet");
  return encoder;
}

std::unique_ptr<TextEncoder> load_stable_diffusion_xl_text_encoder(const std::filesystem::path& model,
                                                                   const LoadOptions& options,
                                                                   LoadStatistics& statistics) {
  return load_of_xl(model, "", options, statistics);
}

std::unique_ptr<TextEncoder> load_stable_diffusion_xl_text_encoder_2(const std::filesystem::path& model,
                                                                     const LoadOptions& options,
                                                                     LoadStatistics& statistics) {
  return load_of_xl(model, "_2", options, statistics);
}

Conditioning join_stable_diffusion_xl(const std::vector<Conditioning>& parts, const std::string& where) {
  std::vector<at::Tensor> tokens;
  for (const Conditioning& part : parts) {
    tokens.push_back(part.at(kTokens));
    if (tokens.back().size(0) != tokens.front().size(0))
      input_error(where, "the two text encoders take prompts of {} and {} tokens", tokens.front().size(0),
                  tokens.back().size(0));
  }
  Conditioning joined = join_conditionings(parts, where);
  joined[kTokens] = at::concat(tokens, 1);
  return joined;
}

}  // namespace tessera::models
