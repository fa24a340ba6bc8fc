// Fuzzes parse_json and the readers of its documents: typed access to every key, model configurations, the
// shard index, request fields, and samplers made from scheduler options, with all their steps.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cstdint>
#include <string_view>

#include "core/json.h"
#include "fuzz/check.h"
#include "models/autoencoder_kl.h"
#include "models/clip.h"
#include "models/pixart.h"
#include "models/t5.h"
#include "models/unet_2d_condition.h"
#include "parallel/options.h"
#include "samplers/sampler.h"
#include "weights/shard_index.h"

namespace tessera {
namespace {

using fuzz::accepts;
using fuzz::require;

constexpr int64_t kSteps = 4, kTokens = 256;
constexpr double kEta = 0.5;

void read_every_way(const JsonConfig& config, const std::string& key) {
  accepts([&] { config.integer(key); });
  accepts([&] { config.number(key); });
  accepts([&] { config.boolean(key); });
  accepts([&] { config.string(key); });
  accepts([&] { config.integers(key); });
  accepts([&] { config.numbers(key); });
  accepts([&] { config.strings(key); });
}

// Runs all steps on a latent of two numbers.
void run_sampler(const JsonConfig& config) {
  std::unique_ptr<samplers::Sampler> sampler;
  const auto make = [&] { sampler = samplers::make_sampler(config, std::nullopt, {kSteps, kTokens, kEta}); };
  if (!accepts(make, /*has_request=*/true)) return;
  require(sampler->steps() >= 1, "a sampler has steps");
  samplers::SamplerState state;
  at::Tensor z = at::ones({2});
  for (int64_t i = 0; i < sampler->steps(); ++i) {
    const at::Tensor output = 0.5 * sampler->scale_model_input(z, i);
    z = sampler->step(output, i, z, state, sampler->needs_noise(i) ? at::ones({2}) : at::Tensor());
  }
  require(z.sizes() == at::IntArrayRef{2}, "steps keep the shape");
}

// Reads the parallel options among the fields of a request.
void read_options(const Json& json) {
  const auto& fields = parallel::parallel_fields();
  parallel::ParallelOptions options;
  if (!accepts([&] { options = read_fields(fields, json); }, /*has_request=*/true)) return;
  const OrderedJson written = write_fields(fields, options);
  require(write_fields(fields, read_fields(fields, Json(written))) == written,
          "fields survive writing and reading");
}

// Schedules of up to a million timesteps are valid, but too slow to fuzz.
bool has_short_schedule(const JsonConfig& config) {
  int64_t timesteps = 0;
  return accepts([&] { timesteps = config.integer("num_train_timesteps", 1000); }) && timesteps <= 2000;
}

// Checks the invariants that the layers of a U-Net rely on.
void check_unet(const models::UNet2DConfig& config) {
  require(!config.levels.empty() && config.mid_heads >= 1, "a U-Net has levels and heads");
  for (const models::UNet2DConfig::Level& level : config.levels) {
    const bool attends = level.down_transformers > 0 || level.up_transformers > 0;
    require(level.channels % config.norm_groups == 0 && level.layers >= 1, "channels fall into groups");
    require(!attends || level.channels % level.heads == 0, "heads divide the channels");
  }
}

void run(std::string_view text) {
  Json json;
  if (!accepts([&] { json = parse_json(text, "file"); })) return;
  if (text.find("NaN") == text.npos && text.find("Infinity") == text.npos) {
    require(parse_json(json.dump(), "file") == json, "a document survives writing and reading");
  }
  if (!json.is_object()) return;
  const JsonConfig config(json, "file");
  for (const auto& [key, value] : json.items()) read_every_way(config, key);
  read_every_way(config, "absent");
  read_options(json);
  accepts([&] { models::PixArtConfig pixart(config); });
  accepts([&] { models::T5Config t5(config); });
  accepts([&] { models::AutoencoderKLConfig vae(config); });
  accepts([&] { models::CLIPTextConfig clip(config); });
  accepts([&] { check_unet(models::UNet2DConfig(config)); });
  accepts([&] {
    for (const auto& [weight, file] : weights::parse_shard_index(config))
      require(!file.empty() && file.find('/') == file.npos, "a shard lies in the folder of its index");
  });
  if (has_short_schedule(config)) run_sampler(config);
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tessera::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
