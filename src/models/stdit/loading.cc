#include "models/stdit/loading.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <utility>

#include "models/loading.h"
#include "models/stdit/stdit2.h"
#include "models/stdit/stdit3.h"
#include "nn/rotary.h"

namespace tessera::models {
namespace {

JsonConfig read_file(const std::filesystem::path& model) {
  return JsonConfig::read(part_folder(model, "transformer") / "config.json");
}

// STDiT2 embeds the height, the width and their ratio, using a third of the width for each.
STDiTConfig read_stdit2_config(const JsonConfig& file) {
  // Version 1.1 only has this order of norm and rotation, so its files do not contain it.
  Json options = {{"model_max_length", 200}, {"qk_norm_legacy", true}};
  options.update(file.values());
  const JsonConfig json = file.with(std::move(options));
  const STDiTConfig config(json);
  if (config.hidden_size % 3 != 0) json.fail("hidden_size", "a multiple of 12");
  return config;
}

// Returns the latents that the model was trained on, if the file has them. The files of published models do
// not, because these were trained on many sizes.
std::optional<std::array<int64_t, 3>> sample_of(const JsonConfig& json) {
  constexpr int64_t kMaxSide = 65536;
  const Json* const found = json.value("input_size");
  const Json given = found ? *found : Json();
  const auto is_null = [](const Json& each) { return each.is_null(); };
  if (given.is_null() || (given.is_array() && std::all_of(given.begin(), given.end(), is_null))) return {};
  const std::vector<int64_t> sizes = json.integers("input_size");
  const bool fits =
      std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size >= 1 && size <= kMaxSide; });
  if (sizes.size() != 3 || !fits) json.fail("input_size", "frames, rows and columns of latents, or null");
  return std::array{sizes[0], sizes[1], sizes[2]};
}

// `products` counts those of width x width in a block, for each token.
DenoiserShape shape_of(const JsonConfig& file, const STDiTConfig& config, int64_t predicted,
                       double products) {
  const double block = products * static_cast<double>(config.hidden_size);
  const auto end = [&](int64_t channels) {
    return static_cast<double>(kSTDiTPatch.size() * channels) / block;
  };
  return {.heads = config.num_heads,
          .blocks = config.depth,
          .embedding = end(config.in_channels),
          .head = end(predicted),
          .latent_channels = config.in_channels,
          .patch = kSTDiTPatch,
          .is_video = true,
          .video_sample = sample_of(file),
          .text_length = config.model_max_length,
          .has_null_text = true,
          .axial_attention = true};
}

template <typename Transformer>
std::unique_ptr<Denoiser> load(PartFiles& files, const LoadOptions& options, LoadStatistics& statistics,
                               STDiTConfig config, int64_t predicted) {
  sample_of(files.config());  // only resolve() needs it
  const LocalBlocks local_blocks(config.depth, options.blocks);
  const auto text = files.stored_shape("y_embedder.y_embedding");
  if (text && !text->empty() && text->front() > 0) config.stored_text_length = text->front();
  auto transformer = std::make_unique<Transformer>(files.scope(), config, local_blocks, Range{0, predicted});
  const auto features = static_cast<double>(config.head_dim());
  files.compare("rope.freqs", at::pow(nn::RotaryAxis().theta, -at::arange(0, features, 2) / features));
  files.finish(statistics, local_blocks.is_all(), {"pos_embed"});  // positions are computed
  return transformer;
}

}  // namespace

// A block of STDiT2 has four products in each self-attention, two in cross-attention and eight in the
// feed-forward; one of STDiT3 has two of each.
DenoiserShape read_stdit2_shape(const std::filesystem::path& model) {
  const JsonConfig file = read_file(model);
  const STDiTConfig config = read_stdit2_config(file);
  return shape_of(file, config, config.out_channels(), 2 * 4 + 2 + 8);
}

DenoiserShape read_stdit3_shape(const std::filesystem::path& model) {
  const JsonConfig file = read_file(model);
  const STDiTConfig config(file);
  return shape_of(file, config, config.in_channels, 2 * (4 + 2 + 8));
}

std::unique_ptr<Denoiser> load_stdit2(const std::filesystem::path& model, const LoadOptions& options,
                                      LoadStatistics& statistics) {
  PartFiles files(part_folder(model, "transformer"), weights::Library::kTransformers, options);
  const STDiTConfig config = read_stdit2_config(files.config());
  return load<STDiT2>(files, options, statistics, config, config.out_channels());
}

std::unique_ptr<Denoiser> load_stdit3(const std::filesystem::path& model, const LoadOptions& options,
                                      LoadStatistics& statistics) {
  PartFiles files(part_folder(model, "transformer"), weights::Library::kTransformers, options);
  const STDiTConfig config(files.config());
  return load<STDiT3>(files, options, statistics, config, config.in_channels);
}

}  // namespace tessera::models
