#include "engine/request.h"

#include <fmt/ranges.h>

#include <charconv>
#include <random>

#include "core/cpu.h"
#include "core/error.h"
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
  // Whether there is one is not asked here: that would start CUDA, long before it is needed.
  return numbered ? at::Device(at::kCUDA, index) : at::Device(at::kCUDA);
}

OutputType read_output_type(const std::string& text) {
  if (text == "image" || text == "pil") return OutputType::kImage;  // diffusers says pil
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
  return fmt::format("Sampler instead of the model's own: {}", fmt::join(names, ", "));
}

Fields<Request> make_fields() {
  using R = Request;
  const char *const picture = "Picture", *const model = "Model", *const machine = "Machine";
  FieldInfo dtype{"dtype", "auto [bf16 where the hardware has it], fp32, bf16, fp16", machine, "TYPE"};
  dtype.choices = {"auto", "fp32", "bf16", "fp16"};
  return {
      plain_field(&R::prompts,
                  {"prompt",
                   "What to paint; several prompts give several pictures. PixArt's captions are not cleaned: "
                   "as diffusers with clean_caption=False",
                   picture, "TEXT"}),
      plain_field(
          &R::prompts_2,
          {"prompt_2", "The same for the second text encoder [the prompt]: one for all prompts, or one each",
           picture, "TEXT"}),
      plain_field(&R::negative_prompts,
                  {"negative_prompt", "What to keep away from [nothing]: one for all prompts, or one each",
                   picture, "TEXT"}),
      plain_field(&R::negative_prompts_2,
                  {"negative_prompt_2",
                   "The same for the second text encoder [the negative prompt]: one for all, or one each",
                   picture, "TEXT"}),
      plain_field(&R::height, {"height", "Height [the model's]", picture, "PIXELS", 1, kMaxSide}),
      plain_field(&R::width, {"width", "Width [the model's]", picture, "PIXELS", 1, kMaxSide}),
      plain_field(&R::seed, {"seed", "Seed of the noise [random]", picture, "N"}),
      plain_field(&R::num_images_per_prompt,
                  {"num_images_per_prompt", "Pictures of each prompt [1]", picture, "N", 1, kMaxPictures}),
      plain_field(
          &R::vae_tiling,
          {"vae_tiling", "Pictures decoded tile by tile: less memory, and not quite the same", model}),
      plain_field(&R::vae_block_size,
                  {"vae_block_size",
                   "Rows that a convolution of the decoder makes at once: less memory [by free memory]",
                   model, "ROWS", 1, kMaxSide}),
      plain_field(
          &R::resolution_binning,
          {"use_resolution_binning",
           "Paint at the nearest size of the training, then resize and crop [where the model has such sizes]",
           picture},
          "Paint at exactly the size that was asked for"),
      plain_field(&R::num_inference_steps,
                  {"num_inference_steps", "Denoising steps [the model's, often 20]", model, "N", 1}),
      plain_field(&R::guidance_scale,
                  {"guidance_scale",
                   "How closely to follow the prompt; 1: no guidance [the model's, often 4.5]", model, "X"}),
      plain_field(
          &R::guidance_rescale,
          {"guidance_rescale", "How far guidance's contrast is taken back, 0 to 1 [0]", model, "X", 0, 1}),
      plain_field(&R::clip_skip,
                  {"clip_skip", "Layers at the end of CLIP that the prompt does not go through [0]", model,
                   "N", 0, kMaxLayers}),
      text_field(
          &R::original_size,
          {"original_size", "Size that the model is told the picture was taken from [its own]", model, "HxW"},
          write_pair, read_pair("original_size")),
      text_field(&R::target_size,
                 {"target_size", "Size that the model is told it is painted at [its own]", model, "HxW"},
                 write_pair, read_pair("target_size")),
      text_field(&R::crops_coords_top_left,
                 {"crops_coords_top_left", "Where the model is told it was cropped [0x0]", model, "TOPxLEFT"},
                 write_pair, read_pair("crops_coords_top_left")),
      plain_field(&R::scheduler, {"scheduler", scheduler_help(), model, "NAME"}),
      plain_field(&R::eta, {"eta", "Fresh noise in each step of DDIM; 0: none [0]", model, "X", 0, 1}),
      plain_field(
          &R::max_sequence_length,
          {"max_sequence_length", "Tokens of a prompt that count [the model's]", model, "N", 1, kMaxTokens}),
      text_field(
          &R::output_type, {"output_type", "image [default] or latent", "Output", "TYPE"},
          [](OutputType type) { return type == OutputType::kImage ? "image" : "latent"; }, read_output_type),
      text_field(
          &R::device, {"device", "cpu [default], cuda or cuda:N", machine, "DEVICE"},
          [](const at::Device& device) { return device.str(); }, read_device),
      text_field(&R::dtype, std::move(dtype), dtype_name, read_dtype)};
}

bool has_bf16(const at::Device& device) {
  return device.is_cuda() || cpu_has_bf16();
}

// A side in pixels must be a multiple of `unit`.
void check_side(const char* name, int64_t side, int64_t unit) {
  if (side % unit == 0) return;
  const int64_t below = side / unit * unit;
  if (below == 0)
    usage_error(field(name), "{} is not a multiple of {}; the nearest valid size is {}", side, unit, unit);
  usage_error(field(name), "{} is not a multiple of {}; the nearest valid sizes are {} and {}", side, unit,
              below, below + unit);
}

// Into latents, by way of what is painted.
void resolve_size(const Model& model, Settings& settings) {
  const Request& request = settings.request;
  settings.height = *request.height;
  settings.width = *request.width;
  const std::pair wish(settings.height, settings.width);
  const std::pair painted =
      request.resolution_binning.value_or(false)
          ? model.family->bin_resolution(settings.height, settings.width, model.shape.sample_size)
          : wish;
  // What is resized after painting need not fit the patches.
  const int64_t unit = painted == wish ? model.scale_factor * model.shape.patch.rows : model.scale_factor;
  check_side("height", settings.height, unit);
  check_side("width", settings.width, unit);
  settings.model_height = painted.first;
  settings.model_width = painted.second;
  settings.latent_height = painted.first / model.scale_factor;
  settings.latent_width = painted.second / model.scale_factor;
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
  return *request.scheduler;  // make_sampler refuses what it does not know
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
  if (uses("use_resolution_binning")) choose(request.resolution_binning, true);
  if (uses("eta")) choose(request.eta, 0.0);
  choose(request.dtype, has_bf16(request.device) ? at::kBFloat16 : at::kFloat);
  if (!request.seed) request.seed = std::random_device()();
  check_fields(request_fields(), request);
  if (request.prompts.empty())
    usage_error(field("prompt"), "give at least one prompt (it may be empty: \"\")");
  if (settings.pictures() > kMaxPictures) {
    usage_error(field("num_images_per_prompt"), "{} pictures in one run, at most {}", settings.pictures(),
                kMaxPictures);
  }
  check_counts(request);
  settings.warnings = drop_without_effect(request);
  if (model.has_safety_checker && request.output_type == OutputType::kImage) {
    settings.warnings.push_back(
        "the model's safety checker is not run: pictures are written whatever they show");
  }
  resolve_size(model, settings);
  settings.steps = *request.num_inference_steps;
  settings.guidance = *request.guidance_scale;
  settings.max_sequence_length = request.max_sequence_length.value_or(family.default_max_sequence_length);
  settings.guidance_rescale = request.guidance_rescale.value_or(0);
  const Pair own{settings.height, settings.width};
  const Pair original = request.original_size.value_or(own), target = request.target_size.value_or(own),
             crop = request.crops_coords_top_left.value_or(Pair());
  settings.sizes = {original.first, original.second, crop.first, crop.second, target.first, target.second};
  return settings;
}

models::Prompt Settings::prompt(size_t index) const {
  return {.text = request.prompts.at(index),
          .second = text_of(request.prompts_2, index),
          .clip_skip = request.clip_skip.value_or(0)};
}

models::Prompt Settings::negative_prompt(size_t index) const {
  const std::optional<std::string> text = text_of(request.negative_prompts, index);
  return {
      .text = text.value_or(""), .second = text_of(request.negative_prompts_2, index), .is_absent = !text};
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
          .row_unit = model.shape.row_unit,
          .has_streams = model.shape.has_streams,
          .has_group_norms = model.shape.has_group_norms,
          .steps = settings.steps,
          .pictures = pictures,
          .guided = guided};
}

}  // namespace tessera::engine
