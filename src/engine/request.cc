#include "engine/request.h"

#include <cmath>

#include "core/error.h"
#include "core/utf8.h"
#include "samplers/sampler.h"

namespace tessera::engine {
namespace {

constexpr int64_t kMaxSide = 16384;
constexpr int64_t kMaxPictures = 1024;
constexpr int64_t kMaxSteps = 10000;
constexpr int64_t kMaxTokens = 4096;

void check_text(const std::string& option, const std::string& text) {
  if (const auto position = find_invalid_utf8(text)) {
    usage_error(option, "is not valid UTF-8 (byte {})", *position);
  }
}

int64_t in_range(const std::string& option, int64_t value, int64_t most) {
  if (value < 1 || value > most) usage_error(option, "must be from 1 to {}, got {}", most, value);
  return value;
}

// A side in pixels must be a multiple of `unit`.
void check_side(const std::string& option, int64_t side, int64_t unit) {
  if (side % unit == 0) return;
  const int64_t below = side / unit * unit;
  if (below == 0)
    usage_error(option, "{} is not a multiple of {}; the nearest valid size is {}", side, unit, unit);
  usage_error(option, "{} is not a multiple of {}; the nearest valid sizes are {} and {}", side, unit, below,
              below + unit);
}

void resolve_size(const Request& request, const Model& model, Settings& settings) {
  const int64_t side = model.shape.sample_size * model.scale_factor;
  settings.height = in_range("--height", request.height.value_or(side), kMaxSide);
  settings.width = in_range("--width", request.width.value_or(side), kMaxSide);
  const std::pair wish(settings.height, settings.width);
  const std::pair painted =
      request.resolution_binning
          ? model.family->bin_resolution(settings.height, settings.width, model.shape.sample_size)
          : wish;
  // What is resized after painting need not fit the patches.
  const int64_t unit = painted == wish ? model.scale_factor * model.shape.patch.rows : model.scale_factor;
  check_side("--height", settings.height, unit);
  check_side("--width", settings.width, unit);
  settings.painted_height = painted.first;
  settings.painted_width = painted.second;
  settings.latent_height = painted.first / model.scale_factor;
  settings.latent_width = painted.second / model.scale_factor;
}

std::string scheduler_class(const Request& request, const Model& model) {
  if (!request.scheduler) return model.scheduler.string("_class_name");
  for (const samplers::SamplerName& known : samplers::known_samplers()) {
    if (*request.scheduler == known.short_name) return known.class_name;
  }
  return *request.scheduler;  // make_sampler refuses what it does not know
}

}  // namespace

Settings resolve(const Request& request, const Model& model) {
  if (request.prompts.empty()) usage_error("PROMPT", "give at least one prompt (it may be empty: \"\")");
  for (const std::string& prompt : request.prompts) check_text("PROMPT", prompt);
  check_text("--negative-prompt", request.negative_prompt);

  Settings settings;
  settings.request = request;
  resolve_size(request, model, settings);
  const models::Family& family = *model.family;
  settings.steps = in_range("--num-inference-steps",
                            request.num_inference_steps.value_or(family.default_steps), kMaxSteps);
  settings.guidance = request.guidance_scale.value_or(family.default_guidance);
  if (!std::isfinite(settings.guidance)) {
    usage_error("--guidance-scale", "must be a finite number, got {}", settings.guidance);
  }
  settings.max_sequence_length =
      in_range("--max-sequence-length",
               request.max_sequence_length.value_or(family.default_max_sequence_length), kMaxTokens);
  in_range("--num-images-per-prompt", request.num_images_per_prompt, kMaxPictures);
  if (settings.pictures() > kMaxPictures) {
    usage_error("--num-images-per-prompt", "{} pictures in one run, at most {}", settings.pictures(),
                kMaxPictures);
  }
  settings.scheduler = scheduler_class(request, model);
  return settings;
}

parallel::Workload workload(const Settings& settings, const Model& model) {
  return workload(std::span(&settings, 1), model);
}

parallel::Workload workload(std::span<const Settings> batch, const Model& model) {
  TESSERA_CHECK(!batch.empty(), "no requests");
  const Settings& settings = batch.front();
  int64_t pictures = 0;
  bool guided = false;
  for (const Settings& each : batch) {
    pictures += each.pictures();
    guided |= each.guided();
  }
  return {.heads = model.shape.heads,
          .blocks = model.shape.blocks,
          .embedding = model.shape.embedding,
          .head = model.shape.head,
          .token_rows = settings.latent_height / model.shape.patch.rows,
          .steps = settings.steps,
          .pictures = pictures,
          .guided = guided};
}

}  // namespace tessera::engine
