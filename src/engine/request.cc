#include "engine/request.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <mutex>
#include <random>
#include <unordered_map>

#include "core/error.h"
#include "core/host.h"
#include "core/log.h"
#include "core/text.h"
#include "engine/denoiser_stage.h"
#include "engine/effects.h"
#include "engine/stated_training.h"
#include "samplers/options.h"
#include "samplers/video_sampler.h"
#include "text/caption_cleaner.h"

namespace tessera::engine {
namespace {

using models::text_of;

bool has_bf16(const at::Device& device) {
  return device.is_cuda() || cpu_has_bf16();
}

// Returns what is wrong with a side in pixels that has to be a multiple of `unit`; empty if it is one.
std::string no_multiple(int64_t side, int64_t unit) {
  if (side % unit == 0) return "";
  const int64_t below = side / unit * unit;
  return fmt::format(
      "{} is not a multiple of {}; the nearest valid {}", side, unit,
      below == 0 ? fmt::format("size is {}", unit) : fmt::format("sizes are {} and {}", below, below + unit));
}

// Returns the training size whose aspect ratio is nearest to the request's, or nothing if the model has no
// such sizes.
std::optional<std::pair<int64_t, int64_t>> binned(const Model& model, const Request& request) {
  return model.family->bin_resolution(*request.height, *request.width, model.shape.sample_size);
}

// Returns what is wrong with a side of this many pixels if `unit` of them make a line of tokens and the model
// has positions for `most` lines; empty if nothing is wrong.
std::string no_positions(int64_t side, int64_t unit, int64_t most) {
  return side <= most * unit ? ""
                             : fmt::format("must be at most {}, for which the model has positions, got {}",
                                           most * unit, side);
}

// Returns the default height (0) or width (1), for which the model has enough positions.
int64_t default_side(const Model& model, size_t axis) {
  const models::DenoiserShape& shape = model.shape;
  const int64_t side = model.family->default_side.value_or(shape.sample_size * model.scale.pixels);
  if (!shape.most_tokens) return side;
  return std::min(side, (*shape.most_tokens)[axis] * shape.patch.rows * model.scale.pixels);
}

// Throws Error(kUsage) with the faults that `fault_of` finds in the sides, height (0) and width (1), in
// pixels; it returns an empty text if there is none.
void require_sides(const Request& request,
                   const std::function<std::string(int64_t side, size_t axis)>& fault_of) {
  std::string faults, first;
  for (const auto& [name, side, axis] :
       {std::tuple("height", *request.height, size_t{0}), {"width", *request.width, size_t{1}}}) {
    const std::string fault = fault_of(side, axis);
    if (fault.empty()) continue;
    faults += first.empty() ? fault : fmt::format("; [{}] {}", field(name), fault);
    if (first.empty()) first = field(name);
  }
  if (!first.empty()) usage_error(first, "{}", faults);
}

// Sets the sizes of the output, of the model's images and of the latents.
void resolve_size(Settings& settings, const Model& model) {
  const Request& request = settings.request;
  const std::pair wish(*request.height, *request.width);
  const std::pair size = request.resolution_binning.value_or(false) ? *binned(model, request) : wish;
  const int64_t pixels = model.scale.pixels;
  if (model.family->resolve_video) {
    require_sides(request, [&](int64_t side, size_t /*axis*/) {
      return side < pixels
                 ? fmt::format("must be at least {0}, got {1}; the nearest valid size is {0}", pixels, side)
                 : "";
    });
  } else if (size == wish) {  // otherwise the image is resized, to whatever size
    const int64_t unit = pixels * model.shape.patch.rows;
    const auto& most = model.shape.most_tokens;
    require_sides(request, [&](int64_t side, size_t axis) {
      const std::string fault = no_multiple(side, unit);
      return fault.empty() && most ? no_positions(side, unit, (*most)[axis]) : fault;
    });
  }
  settings.model_height = size.first;
  settings.model_width = size.second;
  settings.frames = request.video.num_frames.value_or(1);
  settings.latents = {.latent_height = size.first / pixels,
                      .latent_width = size.second / pixels,
                      .scale_factor = pixels,
                      .latent_frames = model.scale.latent_frames(settings.frames)};
  settings.height = size == wish ? settings.latents.latent_height * pixels : wish.first;
  settings.width = size == wish ? settings.latents.latent_width * pixels : wish.second;
}

// Finds the pictures to which the images refer. The first determines the size of the images.
void resolve_references(Settings& settings, const Model& model) {
  Request& request = settings.request;
  if (request.image_sizes.empty()) request.image_sizes = sizes_of_pictures(request.images);
  settings.references =
      reference_pictures(request.images, request.image_sizes, model.scale.pixels * model.shape.patch.rows);
  if (settings.references.empty()) return;
  const ReferencePicture& first = settings.references.front();
  request.height = request.height.value_or(first.model_height);
  request.width = request.width.value_or(first.model_width);
}

// Makes the choices for a video.
void resolve_video(Settings& settings, const Model& model) {
  Request& request = settings.request;
  settings.video =
      model.family->resolve_video(request.video, {.prompts = request.prompts,
                                                  .height = request.height,
                                                  .width = request.width,
                                                  .is_decoded = request.output_type == OutputType::kImage,
                                                  .shape = model.shape,
                                                  .scale = model.scale});
  request.height = settings.video.height;
  request.width = settings.video.width;
  for (const std::string& each : settings.video.warnings) settings.warnings.push_back(each);
}

// A model with a sampler of its own does not take others, and its file may give the steps and the guidance.
void choose_own_sampling(Request& request, const Model& model) {
  const JsonConfig& file = model.scheduler;
  const auto refuse = [&](const char* name, const std::string& value) {
    usage_error(field(name), "{} has one sampler only ({}), got '{}'; leave it out", model.family->title,
                file.string("_class_name"), printable(value));
  };
  if (request.scheduler) refuse("scheduler", *request.scheduler);
  if (!request.scheduler_options.empty()) refuse("scheduler_option", request.scheduler_options.front());
  if (!request.num_inference_steps && file.has("num_sampling_steps"))
    request.num_inference_steps = file.integer("num_sampling_steps");
  if (!request.guidance_scale && file.has("cfg_scale")) request.guidance_scale = file.number("cfg_scale");
}

void choose_text_length(Request& request, const Model& model) {
  const auto& longest = model.shape.text_length;
  if (!request.max_sequence_length)
    request.max_sequence_length = longest.value_or(model.family->default_max_sequence_length);
  if (longest && *request.max_sequence_length > *longest)
    usage_error(field("max_sequence_length"), "must be at most the model's {}, got {}", *longest,
                *request.max_sequence_length);
}

void choose_binning(Request& request, const Model& model) {
  const bool has_bins = binned(model, request).has_value();
  if (request.resolution_binning.value_or(false) && !has_bins)
    usage_error(field("use_resolution_binning", true),
                "models of {0} x {0} pixels have no sizes to choose from; leave it out",
                model.shape.sample_size * model.scale.pixels);
  request.resolution_binning = request.resolution_binning.value_or(has_bins);
}

// An encoder would refuse them only after reading its weights.
void check_captions(const Settings& settings) {
  if (!settings.request.clean_caption.value_or(false)) return;
  for (int64_t loop = 0; loop < settings.video.loops; ++loop) {
    for (size_t i = 0; i < settings.request.prompts.size(); ++i) {
      text::require_cleanable_size(settings.prompt(i, loop).text, "prompt");
      if (settings.guided())
        text::require_cleanable_size(settings.negative_prompt(i, loop).text, "negative_prompt");
    }
  }
}

// Texts that go with the prompts are either one for all or one for each.
void check_counts(const Request& request) {
  const auto require = [&](const std::vector<std::string>& texts, const std::string& name) {
    if (texts.size() > 1 && texts.size() != request.prompts.size())
      usage_error(field(name), "{} of them for {}; give one for all, or one for each", texts.size(),
                  counted(std::ssize(request.prompts), "prompt"));
  };
  const auto require_others = [&](const auto& by_encoder, const char* name) {
    for (size_t i = 0; i < kOtherPrompts; ++i) require(by_encoder[i], fmt::format("{}_{}", name, i + 2));
  };
  require_others(request.other_prompts, "prompt");
  require(request.negative_prompts, "negative_prompt");
  require_others(request.other_negative_prompts, "negative_prompt");
  require(request.video.reference_paths, "reference_path");
  require(request.video.mask_strategies, "mask_strategy");
}

// Returns Prompt::others of the prompt `index`. As in diffusers' `prompt_2 or prompt`, one empty text for all
// counts as none; in a list with a text for each prompt, an empty one is a text.
std::vector<std::optional<std::string>> other_texts_of(
    const std::array<std::vector<std::string>, kOtherPrompts>& by_encoder, size_t index) {
  std::vector<std::optional<std::string>> others;
  for (const std::vector<std::string>& texts : by_encoder) {
    const bool is_none = texts.size() == 1 && texts.front().empty();
    others.push_back(is_none ? std::nullopt : text_of(texts, index));
  }
  return others;
}

}  // namespace

std::string scheduler_class(const Request& request, const Model& model) {
  if (!request.scheduler) return model.scheduler.string("_class_name");
  return samplers::sampler_class(*request.scheduler);  // make_sampler refuses unknown names
}

Settings resolve(const Request& wish, const Model& model) {
  const models::Family& family = *model.family;
  Settings settings;
  Request& request = settings.request = wish;
  const auto choose = [](auto& value, auto chosen) {
    if (!value) value = chosen;
  };
  if (uses_field(model, {}, "image")) resolve_references(settings, model);
  if (!family.resolve_video) {
    choose(request.height, default_side(model, 0));
    choose(request.width, default_side(model, 1));
  }
  if (family.has_own_sampler()) choose_own_sampling(request, model);
  choose(request.num_inference_steps, family.default_steps);
  choose(request.guidance_scale, model.is_distilled ? family.unguided_scale : family.default_guidance);
  settings.scheduler = scheduler_class(request, model);
  require_used_fields(request, model, settings.scheduler);
  const auto uses = [&](const char* name) { return uses_field(model, settings.scheduler, name); };
  if (uses("max_sequence_length")) choose_text_length(request, model);
  if (uses("use_resolution_binning")) choose_binning(request, model);
  if (uses("clean_caption")) choose(request.clean_caption, true);
  if (uses("eta")) choose(request.eta, 0.0);
  choose(request.dtype, has_bf16(request.device) ? at::kBFloat16 : at::kFloat);
  if (!request.seed) request.seed = std::random_device()();
  check_fields(request_fields(), request);
  if (request.prompts.empty())
    usage_error(field("prompt"), "give at least one prompt (it may be empty: \"\")");
  if (settings.pictures() > kMaxPictures) {
    const bool are_prompts = std::ssize(request.prompts) > kMaxPictures;
    usage_error(field(are_prompts ? "prompt" : "num_images_per_prompt"), "{} images in one run, at most {}",
                settings.pictures(), kMaxPictures);
  }
  check_counts(request);
  settings.warnings = drop_without_effect(request, model);
  choose(request.guidance_scale, family.unguided_scale);  // where the scale has no effect
  for (const std::string& each : stated_otherwise(model, request)) settings.warnings.push_back(each);
  if (model.has_safety_checker && request.output_type == OutputType::kImage) {
    settings.warnings.emplace_back(
        "the model's safety checker is not run: images are written whatever they show");
  }
  if (family.resolve_video) resolve_video(settings, model);
  resolve_size(settings, model);
  settings.steps = *request.num_inference_steps;
  settings.guidance = *request.guidance_scale;
  settings.takes_guidance_scale = model.shape.takes_guidance_scale;
  settings.has_null_text = model.shape.has_null_text;
  settings.max_sequence_length = request.max_sequence_length.value_or(family.default_max_sequence_length);
  settings.unguided_scale = family.unguided_scale;
  settings.guidance_rescale = request.guidance_rescale.value_or(0);
  settings.cfg_normalization = request.cfg_normalization.value_or(0);
  settings.cfg_truncation = request.cfg_truncation.value_or(1);
  const Pair own{settings.height, settings.width};
  const Pair original = request.original_size.value_or(own), target = request.target_size.value_or(own),
             crop = request.crops_coords_top_left.value_or(Pair());
  settings.latents.sizes = {original.first, original.second, crop.first,
                            crop.second,    target.first,    target.second};
  check_captions(settings);
  return settings;
}

models::Prompt Settings::prompt(size_t index, int64_t loop) const {
  return {.text = video.texts.empty() ? request.prompts.at(index)
                                      : video.texts.at(index).at(static_cast<size_t>(loop)),
          .others = other_texts_of(request.other_prompts, index),
          .clip_skip = request.clip_skip.value_or(0),
          .clean_caption = request.clean_caption.value_or(false)};
}

models::Prompt Settings::negative_prompt(size_t index, int64_t loop) const {
  const std::optional<std::string> text = text_of(request.negative_prompts, index);
  return {.text = text.value_or(""),
          .others = other_texts_of(request.other_negative_prompts, index),
          .is_absent = !text,
          .null_of = has_null_text && !text ? std::optional(prompt(index, loop).text) : std::nullopt,
          .clean_caption = request.clean_caption.value_or(false)};
}

bool Settings::has_given() const {
  return video.loops > 1 || std::any_of(video.given.begin(), video.given.end(),
                                        [](const auto& ranges) { return !ranges.empty(); });
}

std::unique_ptr<samplers::Sampler> make_sampler(const Settings& settings, const Model& model) {
  if (model.family->has_own_sampler())
    return samplers::make_video_sampler(model.scheduler,
                                        {.steps = settings.steps,
                                         .height = static_cast<double>(settings.model_height),
                                         .width = static_cast<double>(settings.model_width),
                                         .num_frames = settings.frames});
  const int64_t tokens = model.shape.token_grid(settings.latents).tokens();
  const bool ends_in_sample = model.family->takes_sample_of_single_step && settings.steps == 1;
  std::optional<double> mu;
  if (model.family->mu) mu = model.family->mu(tokens, settings.steps);
  const Request& request = settings.request;
  return samplers::make_sampler(
      model.scheduler, request.scheduler,
      {settings.steps, tokens, request.eta.value_or(0), ends_in_sample,
       samplers::parse_options(request.scheduler_options), model.family->has_even_sigmas, mu});
}

namespace {

// Everything that make_sampler() reads.
std::string sampler_key(const Settings& settings, const Model& model) {
  const Request& request = settings.request;
  const Json key = {model.family->title,
                    model.scheduler.values(),
                    request.scheduler.value_or(""),
                    request.scheduler_options,
                    request.eta.value_or(0),
                    settings.steps,
                    settings.model_height,
                    settings.model_width,
                    settings.frames,
                    settings.latents.latent_height,
                    settings.latents.latent_width,
                    settings.latents.latent_frames};
  return key.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Throws what make_sampler() throws. A server asks this for each request, and most are alike: making a
// sampler takes 0.2 ms if the processor has done other work since the last one.
bool has_elementwise_sampler(const Settings& settings, const Model& model) {
  constexpr size_t kMostKnown = 256;
  static std::mutex mutex;
  static std::unordered_map<std::string, bool> known;
  const std::string key = sampler_key(settings, model);
  {
    const std::lock_guard lock(mutex);
    if (const auto found = known.find(key); found != known.end()) return found->second;
  }
  const SuppressLog suppress_log;  // the run repeats the warnings
  const bool is_elementwise = make_sampler(settings, model)->is_elementwise();
  const std::lock_guard lock(mutex);
  if (known.size() == kMostKnown) known.clear();
  return known.emplace(key, is_elementwise).first->second;
}

}  // namespace

parallel::Workload workload(const Settings& settings, const Model& model) {
  return workload(std::span(&settings, 1), model);
}

parallel::Workload workload(std::span<const Settings> batch, const Model& model) {
  TESSERA_CHECK(!batch.empty(), "no requests");
  const Settings& settings = batch.front();
  parallel::Workload all = workload_of(model.shape, settings.latents);
  all.has_elementwise_sampler = has_elementwise_sampler(settings, model);
  all.steps = settings.steps;
  all.pictures = 0;
  all.guided = false;
  all.unguided_scale = model.is_distilled ? std::numeric_limits<double>::infinity() : settings.unguided_scale;
  for (const Settings& each : batch) {
    all.pictures += each.pictures();
    all.guided |= each.guided();
    all.has_elementwise_guidance &= !each.guided() || each.cfg_normalization == 0;
  }
  return all;
}

}  // namespace tessera::engine
