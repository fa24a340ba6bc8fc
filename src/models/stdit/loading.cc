#include "models/stdit/loading.h"

#include "models/loading.h"
#include "models/stdit/stdit2.h"
#include "models/stdit/stdit3.h"

namespace tessera::models {
namespace {

STDiTConfig read_config(const std::filesystem::path& model) {
  return STDiTConfig(JsonConfig::read(model / "transformer" / "config.json"));
}

// STDiT2 embeds the height, the width and their ratio in a third of the width each.
STDiTConfig read_stdit2_config(const std::filesystem::path& model) {
  const JsonConfig json = JsonConfig::read(model / "transformer" / "config.json");
  const STDiTConfig config(json);
  if (config.hidden_size % 3 != 0) json.fail("hidden_size", "a multiple of 12");
  return config;
}

// `products` counts those of width x width in a block, for each token.
DenoiserShape shape_of(const STDiTConfig& config, int64_t predicted, double products) {
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
          .axial_attention = true};
}

template <typename Transformer>
std::unique_ptr<Denoiser> load(const std::filesystem::path& model, const LoadOptions& options,
                               LoadStatistics& statistics, STDiTConfig config, int64_t predicted) {
  const LocalBlocks local_blocks(config.depth, options.blocks);
  PartFiles files(model / "transformer", weights::Library::kTransformers, options);
  const std::vector<int64_t>& text = files.checkpoint().entry("y_embedder.y_embedding").shape;
  if (!text.empty() && text[0] > 0) config.stored_text_length = text[0];
  auto transformer = std::make_unique<Transformer>(files.scope(), config, local_blocks, Range{0, predicted});
  // Rotations and positions are computed.
  files.finish(statistics, local_blocks.is_all(), {"rope.freqs", "pos_embed"});
  return transformer;
}

}  // namespace

// A block of STDiT2 has four products in each self-attention, two in cross-attention and eight in the
// feed-forward; one of STDiT3 has two of each.
DenoiserShape read_stdit2_shape(const std::filesystem::path& model) {
  const STDiTConfig config = read_stdit2_config(model);
  return shape_of(config, config.out_channels(), 2 * 4 + 2 + 8);
}

DenoiserShape read_stdit3_shape(const std::filesystem::path& model) {
  const STDiTConfig config = read_config(model);
  return shape_of(config, config.in_channels, 2 * (4 + 2 + 8));
}

std::unique_ptr<Denoiser> load_stdit2(const std::filesystem::path& model, const LoadOptions& options,
                                      LoadStatistics& statistics) {
  const STDiTConfig config = read_stdit2_config(model);
  return load<STDiT2>(model, options, statistics, config, config.out_channels());
}

std::unique_ptr<Denoiser> load_stdit3(const std::filesystem::path& model, const LoadOptions& options,
                                      LoadStatistics& statistics) {
  const STDiTConfig config = read_config(model);
  return load<STDiT3>(model, options, statistics, config, config.in_channels);
}

}  // namespace tessera::models
