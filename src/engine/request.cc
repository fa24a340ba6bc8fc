#include "engine/request.h"

#include <fmt/ranges.h>

#include <charconv>
#include <random>

#include "core/cpu.h"
#include "core/error.h"
#include "engine/denoiser_stage.h"
#include "engine/effects.h"
#include "samplers/sampler.h"

namespace tessera::engine {
namespace {

constexpr int64_t kMaxPictures = 1024;
constexpr double kMaxSide = 16384, kMaxTokens = 4096, kMaxLayers = 256;

const std::vector<std::pair<std::string, at::ScalarType>> kDtypes = {
    {"fp32", at::kFloat}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}};

std::optional<at::ScalarType> read_dtype(const std::string& text) {
  for (const auto& [name, dtype] : kDtypes) {
    if (name == text) return dtype;
  }
  return std::nullopt;  // "auto"
}

at::Device read_device(const std::string& text) {
  if (text == "cpu") return at::kCPU;
  const bool numbered = text.starts_with("cuda:");
  int8_t index = 0;
  const char* const end = text.data() + text.size();
  const auto read = numbered ? std::from_chars(text.data() + 5, end, index) : std::from_chars_result{end, {}};
  if ((text != "cuda" && !numbered) || read.ec != std::errc() || read.ptr != end || index < 0)
    usage_error(field("device"), "expected cpu, cuda or cuda:N, got '{}'", text);
  // The device is not looked up here, because that would start CUDA long before it is needed.
  return numbered ? at::Device(at::kCUDA, index) : at::Device(at::kCUDA);
}

OutputType read_output_type(const std::string& text) {
  if (text == "image" || text == "pil") return OutputType::kImage;  // the name in diffusers
  if (text == "latent") return OutputType::kLatent;
  usage_error(field("output_type"), "expected image or latent, got '{}'", text);
}

std::string write_pair(const Pair& pair) {
  return fmt::format("{}x{}", pair.first, pair.second);
}

// "HEIGHTxWIDTH"
auto read_pair(const char* name) {
  return [name](const std::string& text) {
    Pair pair;
    const char *const begin = text.data(), *const end = begin + text.size();
    const auto first = std::from_chars(begin, end, pair.first);
    const bool has_second = first.ec == std::errc() && first.ptr != end && *first.ptr == 'x';
    const auto second = has_second ? std::from_chars(first.ptr + 1, end, pair.second) : first;
    const auto fits = [](int64_t number) { return number >= 0 && number <= static_cast<int64_t>(kMaxSide); };
    if (!has_second || second.ec != std::errc() || second.ptr != end || !fits(pair.first) ||
        !fits(pair.second))
      usage_error(field(name), "expected two numbers from 0 to {}, such as 1024x1024, got '{}'", kMaxSide,
                  text);
    return pair;
  };
}

std::string scheduler_help() {
  std::vector<std::string> names;
  for (const samplers::SamplerName& known : samplers::known_samplers()) names.push_back(known.short_name);
  return fmt::format("Sampler: {}, or a class name of diffusers [the model's]", fmt::join(names, ", "));
}

Fields<Request> make_fields() {
  using R = Request;
  const FieldGroup prompt = FieldGroup::kPrompt, image = FieldGroup::kImage, sampling = FieldGroup::kSampling,
                   memory = FieldGroup::kMemory, machine = FieldGroup::kMachine;
  FieldInfo dtype{"dtype", "Data type [auto: bf16 where the hardware multiplies it, else fp32]", machine,
                  "TYPE"};
  dtype.choices = {"auto", "fp32", "bf16", "fp16"};
  return {
      plain_field(&R::prompts,
                  {"prompt", "Text prompt; several prompts give several images", prompt, "TEXT"}),
      plain_field(&R::prompts_2, {"prompt_2",
                                  "Prompt for the second text encoder: one for all, or one per prompt "
                                  "(repeat the option) [the prompt]",
                                  prompt, "TEXT"}),
      plain_field(
          &R::negative_prompts,
          {"negative_prompt", "Negative prompt: one for all, or one per prompt (repeat the option) [none]",
           prompt, "TEXT"}),
      plain_field(&R::negative_prompts_2, {"negative_prompt_2",
                                           "Negative prompt for the second text encoder: one for all, or one "
                                           "per prompt (repeat the option) [the "
                                           "negative prompt]",
                                           prompt, "TEXT"}),
      plain_field(
          &R::clean_caption,
          {"clean_caption",
           "Remove links, markup and other web-page residue from prompts [on where the model supports it]",
           prompt},
          "Only lower-case prompts and strip white space"),
      plain_field(&R::height, {"height", "Image height [the model's]", image, "PIXELS", 1, kMaxSide}),
      plain_field(&R::width, {"width", "Image width [the model's]", image, "PIXELS", 1, kMaxSide}),
      plain_field(&R::seed, {"seed", "Seed of the random numbers [random]", image, "N"}),
      plain_field(&R::num_images_per_prompt,
                  {"num_images_per_prompt", "Number of images per prompt [1]", image, "N", 1, kMaxPictures}),
      plain_field(
          &R::vae_tiling,
          {"vae_tiling", "Decode in overlapping tiles: less memory, slightly different images", memory}),
      plain_field(
          &R::vae_block_size,
          {"vae_block_size",
           "Limit the rows that a convolution of the decoder computes at a time, to save memory [by the "
           "machine's memory]",
           memory, "N", 1, kMaxSide}),
      plain_field(&R::resolution_binning,
                  {"use_resolution_binning",
                   "Generate at the training size of the nearest aspect ratio, then resize and crop [on if "
                   "the model has "
                   "such sizes]",
                   image},
                  "Generate at exactly the requested size"),
      plain_field(
          &R::num_inference_steps,
          {"num_inference_steps", "Number of denoising steps [20; Stable Diffusion 50]", sampling, "N", 1}),
      plain_field(&R::guidance_scale, {"guidance_scale",
                                       "Guidance scale: higher values follow the prompt more closely, 1 "
                                       "turns guidance off [PixArt 4.5, Stable Diffusion 7.5, XL 5]",
                                       sampling, "X", 0}),
      plain_field(&R::guidance_rescale,
                  {"guidance_rescale", "Guidance rescale factor [0]", sampling, "X", 0, 1}),
      plain_field(&R::clip_skip, {"clip_skip", "Skip the last N CLIP layers (diffusers' count) [0]", prompt,
                                  "N", 0, kMaxLayers}),
      text_field(&R::original_size,
                 {"original_size", "SDXL: original size to condition on [the image's size]", image, "HxW"},
                 write_pair, read_pair("original_size")),
      text_field(&R::target_size,
                 {"target_size", "SDXL: target size to condition on [the image's size]", image, "HxW"},
                 write_pair, read_pair("target_size")),
      text_field(&R::crops_coords_top_left,
                 {"crops_coords_top_left", "SDXL: crop position to condition on [0x0]", image, "TOPxLEFT"},
                 write_pair, read_pair("crops_coords_top_left")),
      plain_field(&R::scheduler, {"scheduler", scheduler_help(), sampling, "NAME"}),
      plain_field(&R::eta, {"eta", "DDIM: amount of noise added in each step [0]", sampling, "X", 0, 1}),
      plain_field(&R::max_sequence_length,
                  {"max_sequence_length", "Maximum prompt length in tokens [the model's]", prompt, "N", 1,
                   kMaxTokens}),
      text_field(
          &R::output_type,
          {"output_type", "Kind of output: image or latent [image]", FieldGroup::kOutput, "TYPE"},
          [](OutputType type) { return type == OutputType::kImage ? "image" : "latent"; }, read_output_type),
      text_field(
          &R::device, {"device", "Device: cpu, cuda or cuda:N [cpu]", machine, "DEVICE"},
          [](const at::Device& device) { return device.str(); }, read_device),
      text_field(&R::dtype, std::move(dtype), dtype_name, read_dtype)};
}

bool has_bf16(const at::Device& device) {
  return device.is_cuda() || cpu_has_bf16();
}

// Throws Error(kUsage) unless a side in pixels is a multiple of `unit`.
void check_side(const char* name, int64_t side, int64_t unit) {
  if (side % unit == 0) return;
  const int64_t below = side / unit * unit;
  if (below == 0)
    usage_error(field(name), "{} is not a multiple of {}; the nearest valid size is {}", side, unit, unit);
  usage_error(field(name), "{} is not a multiple of {}; the nearest valid sizes are {} and {}", side, unit,
              below, below + unit);
}

// The training size whose aspect ratio is nearest to the request's; nothing where the model has no such
// sizes.
std::optional<std::pair<int64_t, int64_t>> binned(const Model& model, const Request& request) {
  return model.family->bin_resolution(*request.height, *request.width, model.shape.sample_size);
}

// Sets the sizes of the output, of the model's images and of the latents.
void resolve_size(const Model& model, Settings& settings) {
  const Request& request = settings.request;
  settings.height = *request.height;
  settings.width = *request.width;
  const std::pair wish(settings.height, settings.width);
  const std::pair model_size = request.resolution_binning.value_or(false) ? *binned(model, request) : wish;
  // An output size that is resized need not be a multiple of the patches.
  const int64_t unit = model_size == wish ? model.scale_factor * model.shape.patch.rows : model.scale_factor;
  check_side("height", settings.height, unit);
  check_side("width", settings.width, unit);
  settings.model_height = model_size.first;
  settings.model_width = model_size.second;
  settings.latents = {.latent_height = model_size.first / model.scale_factor,
                      .latent_width = model_size.second / model.scale_factor,
                      .scale_factor = model.scale_factor};
}

// Texts that go with the prompts are one for all, or one for each.
void check_counts(const Request& request) {
  const auto require = [&](const std::vector<std::string>& texts, const char* name) {
    if (texts.size() > 1 && texts.size() != request.prompts.size())
      usage_error(field(name), "{} of them for {} prompt{}; give one for all, or one for each", texts.size(),
                  request.prompts.size(), request.prompts.size() == 1 ? "" : "s");
  };
  require(request.prompts_2, "prompt_2");
  require(request.negative_prompts, "negative_prompt");
  require(request.negative_prompts_2, "negative_prompt_2");
}

// Returns the text that goes with the prompt `index`; check_counts() has accepted `texts`.
std::optional<std::string> text_of(const std::vector<std::string>& texts, size_t index) {
  if (texts.empty()) return std::nullopt;
  return texts.size() == 1 ? texts.front() : texts.at(index);
}

std::string scheduler_class(const Request& request, const Model& model) {
  if (!request.scheduler) return model.scheduler.string("_class_name");
  for (const samplers::SamplerName& known : samplers::known_samplers()) {
    if (*request.scheduler == known.short_name) return known.class_name;
  }
  return *request.scheduler;  // make_sampler refuses unknown names
}

}  // namespace

const Fields<Request>& request_fields() {
  static const Fields<Request> fields = make_fields();
  return fields;
}

std::string dtype_name(at::ScalarType dtype) {
  for (const auto& [name, known] : kDtypes) {
    if (known == dtype) return name;
  }
  return c10::toString(dtype);
}

Settings resolve(const Request& wish, const Model& model) {
  const models::Family& family = *model.family;
  Settings settings;
  Request& request = settings.request = wish;
  const auto choose = [](auto& value, auto chosen) {
    if (!value) value = chosen;
  };
  choose(request.height, model.shape.sample_size * model.scale_factor);
  choose(request.width, model.shape.sample_size * model.scale_factor);
  choose(request.num_inference_steps, family.default_steps);
  choose(request.guidance_scale, family.default_guidance);
  settings.scheduler = scheduler_class(request, model);
  require_used_fields(request, model, settings.scheduler);
  const auto uses = [&](const char* name) { return uses_field(model, settings.scheduler, name); };
  if (uses("max_sequence_length")) choose(request.max_sequence_length, family.default_max_sequence_length);
  if (uses("use_resolution_binning")) {
    const bool has_bins = binned(model, request).has_value();
    if (request.resolution_binning.value_or(false) && !has_bins) {
      usage_error(field("use_resolution_binning", true),
                  "models of {} x {} pixels have no sizes to choose from; leave it out",
                  model.shape.sample_size * model.scale_factor, model.shape.sample_size * model.scale_factor);
    }
    choose(request.resolution_binning, has_bins);
  }
  if (uses("clean_caption")) choose(request.clean_caption, true);
  if (uses("eta")) choose(request.eta, 0.0);
  choose(request.dtype, has_bf16(request.device) ? at::kBFloat16 : at::kFloat);
  if (!request.seed) request.seed = std::random_device()();
  check_fields(request_fields(), request);
  if (request.prompts.empty())
    usage_error(field("prompt"), "give at least one prompt (it may be empty: \"\")");
  if (settings.pictures() > kMaxPictures) {
    usage_error(field("num_images_per_prompt"), "{} images in one run, at most {}", settings.pictures(),
                kMaxPictures);
  }
  check_counts(request);
  settings.warnings = drop_without_effect(request);
  if (model.has_safety_checker && request.output_type == OutputType::kImage) {
    settings.warnings.push_back(
        "the model's safety checker is not run: images are written whatever they show");
  }
  resolve_size(model, settings);
  settings.steps = *request.num_inference_steps;
  settings.guidance = *request.guidance_scale;
  settings.max_sequence_length = request.max_sequence_length.value_or(family.default_max_sequence_length);
  settings.guidance_rescale = request.guidance_rescale.value_or(0);
  const Pair own{settings.height, settings.width};
  const Pair original = request.original_size.value_or(own), target = request.target_size.value_or(own),
             crop = request.crops_coords_top_left.value_or(Pair());
  settings.latents.sizes = {original.first, original.second, crop.first,
                            crop.second,    target.first,    target.second};
  return settings;
}

models::Prompt Settings::prompt(size_t index) const {
  return {.text = request.prompts.at(index),
          .second = text_of(request.prompts_2, index),
          .clip_skip = request.clip_skip.value_or(0),
          .clean_caption = request.clean_caption.value_or(false)};
}

models::Prompt Settings::negative_prompt(size_t index) const {
  const std::optional<std::string> text = text_of(request.negative_prompts, index);
  return {.text = text.value_or(""),
          .second = text_of(request.negative_prompts_2, index),
          .is_absent = !text,
          .clean_caption = request.clean_caption.value_or(false)};
}

std::unique_ptr<samplers::Sampler> make_sampler(const Settings& settings, const Model& model) {
  const int64_t tokens = model.shape.token_grid(settings.latents).tokens();
  const bool ends_in_sample = model.family->takes_sample_of_single_step && settings.steps == 1;
  return samplers::make_sampler(model.scheduler, settings.request.scheduler,
                                {settings.steps, tokens, settings.request.eta.value_or(0), ends_in_sample});
}

parallel::Workload workload(const Settings& settings, const Model& model) {
  return workload(std::span(&settings, 1), model);
}

parallel::Workload workload(std::span<const Settings> batch, const Model& model) {
  TESSERA_CHECK(!batch.empty(), "no requests");
  const Settings& settings = batch.front();
  parallel::Workload all = workload_of(model.shape, settings.latents);
  all.steps = settings.steps;
  all.pictures = 0;
  all.guided = false;
  for (const Settings& each : batch) {
    all.pictures += each.pictures();
    all.guided |= each.guided();
  }
  return all;
}

}  // namespace tessera::engine
