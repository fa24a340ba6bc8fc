// The one table of model families.
#include "core/error.h"
#include "models/autoencoder_kl.h"
#include "models/family.h"
#include "models/pixart.h"
#include "models/t5.h"

namespace tessera::models {
namespace {

// PixArt was trained on latents that are only scaled, whatever else the VAE's file holds for other models.
std::unique_ptr<Decoder> load_pixart_decoder(const std::filesystem::path& model, const LoadOptions& options,
                                             LoadStatistics& statistics) {
  auto decoder = load_autoencoder_kl_decoder(model / "vae", options, statistics);
  decoder->config.shift_factor = 0;
  decoder->config.latents_mean.clear();
  decoder->config.latents_std.clear();
  return decoder;
}

Family pixart(std::string class_name, std::string title, int64_t max_sequence_length) {
  return {.class_name = std::move(class_name),
          .title = std::move(title),
          .default_steps = 20,
          .default_guidance = 4.5,
          .guidance = GuidanceKind::kTwoBranches,
          .default_max_sequence_length = max_sequence_length,
          .bin_resolution = pixart_bin_resolution,
          .read_shape = read_pixart_shape,
          .load_text_encoder = load_t5_text_encoder,
          .load_denoiser = load_pixart,
          .load_decoder = load_pixart_decoder};
}

}  // namespace

const std::vector<Family>& families() {
  static const std::vector<Family> table = {
      pixart("PixArtAlphaPipeline", "PixArt-alpha", 120),
      pixart("PixArtSigmaPipeline", "PixArt-Sigma", 300),
  };
  return table;
}

const Family& find_family(const std::string& class_name, const std::string& where) {
  std::vector<std::string> known;
  for (const Family& family : families()) {
    if (family.class_name == class_name) return family;
    known.push_back(family.class_name);
  }
  input_error(where, "pipelines of class '{}' cannot run here; these can: {}", class_name,
              fmt::join(known, ", "));
}

}  // namespace tessera::models
